"""Kafka's jars: fetched once with jgo, checked against committed SHA-256 sums, from then on used without network.

The list `checksums/kafka-<version>.txt` is the lock file: it names every jar (Maven coordinate) and its sum. Nothing
is resolved at run time, so the same jars run everywhere and the second start needs no network. `python -m
tests.lab.kafka.lock VERSION` writes it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lab.kafka.cache import cache_dir, locked
from tests.lab.kafka.errors import EmbeddedKafkaError
from tests.lab.releases import CHECKSUMS, NEW, RUN

if TYPE_CHECKING:
    from jgo.maven import MavenContext

Progress = Callable[[str], None]

DEFAULT_VERSION = NEW
# Central answers small files slowly and large ones fast; eight at a time hides that without straining the repository.
PARALLEL_DOWNLOADS = 8
DOWNLOAD_TIMEOUT_S = 30
DOWNLOAD_ATTEMPTS = 3

# Sums already computed by this process, by (path, size, modification time): a session that runs many tools hashes
# each jar once.
_seen_sums: dict[tuple[str, int, int], str] = {}


def quiet(_line: str) -> None:
    """Progress callback that shows nothing."""


@dataclass(frozen=True, slots=True)
class LockedJar:
    """One line of the lock file: a Maven coordinate and the SHA-256 its jar must have."""

    group: str
    artifact: str
    version: str
    classifier: str
    sha256: str

    @property
    def coordinate(self) -> str:
        """`group:artifact:version[:classifier]`, as Maven writes it."""
        return ":".join(part for part in (self.group, self.artifact, self.version, self.classifier) if part)

    @property
    def path(self) -> Path:
        """Place below a Maven repository's root."""
        suffix = f"-{self.classifier}" if self.classifier else ""
        folder = Path(*self.group.split("."), self.artifact, self.version)
        return folder / f"{self.artifact}-{self.version}{suffix}.jar"


def read_lock(version: str) -> list[LockedJar]:
    """The committed list of jars of one Kafka version (`4.4.0`), or of part of it (`streams-4.4.0`); of its clients
    alone, if there is no other. Raises EmbeddedKafkaError."""
    names = (version, f"kafka-{version}", f"clients-{version}")
    file = next((file for name in names if (file := CHECKSUMS / f"{name}.txt").is_file()), None)
    if file is None:
        raise EmbeddedKafkaError(
            f"no checksums for Kafka {version}: this checkout knows {', '.join(RUN)}. "
            f"`python -m tests.lab.kafka.lock {version}` writes kafka-{version}.txt"
        )
    jars = []
    for line in file.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            sha256, coordinate = line.split()
            group, artifact, jar_version, classifier = [*coordinate.split(":"), ""][:4]
            jars.append(LockedJar(group, artifact, jar_version, classifier, sha256))
    return jars


def resolve(version: str = DEFAULT_VERSION, *, progress: Progress = quiet) -> list[Path]:
    locked = read_lock(version)
    progress(f"resolving Kafka {version} ({len(locked)} jars)")
    return fetched(locked, f"Kafka {version}", progress=progress)


def fetched(locked: Sequence[LockedJar], of: str, *, progress: Progress = quiet) -> list[Path]:
    """Where these jars are, each with its SHA-256; those missing in the cache are fetched first."""
    root = cache_dir() / "jars"
    missing = [jar for jar in locked if not (root / jar.path).is_file()]
    if missing:
        _fetch(of, missing, root, progress)
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:  # hashing large buffers releases the GIL
        list(pool.map(lambda jar: verify(root / jar.path, jar), locked))
    return [root / jar.path for jar in locked]


def sha256_of(path: Path) -> str:
    """SHA-256 of a file as hex; remembered while size and modification time stay the same."""
    stat = path.stat()
    key = (str(path), stat.st_size, stat.st_mtime_ns)
    if key not in _seen_sums:
        with path.open("rb") as file:
            _seen_sums[key] = hashlib.file_digest(file, "sha256").hexdigest()
    return _seen_sums[key]


def verify(path: Path, jar: LockedJar) -> None:
    found = sha256_of(path)
    if found != jar.sha256:
        raise EmbeddedKafkaError(
            f"wrong checksum of {path}\n"
            f"  expected SHA-256 {jar.sha256}  ({jar.coordinate})\n"
            f"  found    SHA-256 {found}  ({path.stat().st_size} bytes)\n"
            "The file is damaged or was replaced. Delete it; it is fetched again at the next start."
        )


def maven(repository: Path) -> MavenContext:
    """jgo's view of Maven: `repository` is the local one, Central (and what jgo's config file names) the remote."""
    try:
        from jgo.config import GlobalSettings
        from jgo.constants import MAVEN_CENTRAL_URL
        from jgo.maven import MavenContext
    except ImportError as error:
        raise EmbeddedKafkaError(
            "the embedded Kafka needs the package jgo: pip install 'kquota[demo]' (or run it through `make demo`)"
        ) from error
    # Mirrors first: where one is configured for jgo, Central can usually not be reached.
    remotes = {**GlobalSettings.load().repositories}
    remotes.setdefault("central", MAVEN_CENTRAL_URL)
    return MavenContext(repo_cache=repository, remote_repos=remotes, timeout=DOWNLOAD_TIMEOUT_S)


def _fetch(of: str, missing: list[LockedJar], root: Path, progress: Progress) -> None:
    """Fetch jars into a scratch folder, check them, then move them in place: the cache never holds half a file."""
    root.mkdir(parents=True, exist_ok=True)
    with locked(root / ".lock"):
        missing = [jar for jar in missing if not (root / jar.path).is_file()]  # another process may have been faster
        if not missing:
            return
        progress(f"fetching {len(missing)} jars of {of} into {root}")
        scratch = Path(tempfile.mkdtemp(prefix=".fetch-", dir=root))
        try:
            context = maven(scratch)

            def fetch(jar: LockedJar) -> LockedJar:
                _download(context, jar, scratch / jar.path)
                verify(scratch / jar.path, jar)
                target = root / jar.path
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(scratch / jar.path, target)
                return jar

            with ThreadPoolExecutor(max_workers=PARALLEL_DOWNLOADS) as pool:
                for done, _jar in enumerate(pool.map(fetch, missing), start=1):
                    if done % 10 == 0 or done == len(missing):
                        progress(f"fetched {done} of {len(missing)} jars")
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _download(context: MavenContext, jar: LockedJar, target: Path) -> None:
    artifact = context.project(jar.group, jar.artifact).at_version(jar.version).artifact(jar.classifier, "jar")
    problem: Exception | None = None
    for _attempt in range(DOWNLOAD_ATTEMPTS):
        target.unlink(missing_ok=True)  # a broken transfer leaves a part behind
        try:
            artifact.resolve()
            return
        except (OSError, RuntimeError) as error:  # requests' errors are OSErrors; jgo's "not found" is a RuntimeError
            problem = error
    raise EmbeddedKafkaError(
        f"cannot fetch {jar.coordinate} ({type(problem).__name__}: {problem}).\n"
        f"The first start needs a network to fetch jars into {cache_dir()}; later starts need none. "
        "Behind a mirror: name it in jgo's config file, section [repositories]."
    ) from problem
