"""The images that the node runs: made by buildah, from Debian's packages and the project's own Dockerfile."""

import functools
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any, Final

from tests.lab.kafka.cache import cache_dir, locked, oldest
from tests.lab.kafka.jars import DEFAULT_VERSION, resolve
from tests.lab.kafka.javalog import tool_arguments
from tests.support.kept_builds import ROOT, key_of

RECIPES: Final = Path(__file__).with_name("images")
SUITE: Final = "bookworm"
BASE_PACKAGES: Final = ("python3", "python3-venv", "python3-pip", "python3-dev", "libpython3-dev", "ca-certificates")
"""python:3.11-slim-bookworm has Python's headers, which Debian has in packages of their own."""
AUTHORITIES: Final = Path("/etc/ssl/certs/ca-certificates.crt")
CLIENT_PACKAGES: Final = ("confluent-kafka", "kafka-python")
TARGETS: Final = {"kquota": "kquota", "redirect": "kquota-redirect", "analysis": "kquota-analysis"}
"""The Dockerfile's targets, and what the chart calls the images."""
DESCRIPTION: Final = "README.md"
"""The wheel has it as its description, and nothing in an image reads that: a change of it makes no new image here."""
PAUSE: Final = "localhost/pause:test"
BASE: Final = "localhost/python:3.11-slim-bookworm"
SCRATCH: Final = "building-"
KEPT_OF_EACH: Final = 3


def context_files(ignore: str) -> list[str]:
    """The build context: this checkout's files that .dockerignore lets through (an allow list, see there)."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    lines = [line for line in ignore.splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*", "an allow list begins with *"
    allowed = [line[1:].removesuffix("**") for line in lines[1:] if line.startswith("!")]
    refused = tuple(line.removesuffix("**") for line in lines[1:] if line.endswith("/**") and not line.startswith("!"))
    folders = tuple(one for one in allowed if one.endswith("/"))
    through = [name for name in listed if name in allowed or name.startswith(folders)]
    return [name for name in through if not name.startswith(refused) and (ROOT / name).exists()]


class NoImageError(Exception):
    """An image cannot be built here; says what failed."""


def name_of(image: str) -> str:
    return {"pause": PAUSE, "base": BASE}.get(image, f"localhost/{image}:test")


def archive(image: str) -> Path:
    builders = {"pause": _pause, "kafka": _kafka, "client": _client, "base": base}
    if image in builders:
        return builders[image]()
    (target,) = [target for target, name in TARGETS.items() if name == image]
    return _project(target)


def write_together(images: Iterable[str], to: Path) -> None:
    """One archive of several images, with each layer once: most of them share the base, which is the largest."""
    described: list[dict[str, Any]] = []
    written: set[str] = set()
    with tarfile.open(to, "w") as out:
        for image in images:
            with tarfile.open(archive(image)) as file:
                (about,) = json.loads(_content(file, "manifest.json").read())
                described.append(about)
                for name in (about["Config"], *about["Layers"]):
                    if name not in written:
                        written.add(name)
                        out.addfile(file.getmember(name), _content(file, name))
        manifest = json.dumps(described).encode()
        entry = tarfile.TarInfo("manifest.json")
        entry.size = len(manifest)
        out.addfile(entry, io.BytesIO(manifest))


def _content(file: tarfile.TarFile, name: str) -> IO[bytes]:
    found = file.extractfile(name)
    assert found is not None, name
    return found


def size_mb(path: Path) -> float:
    """What the layers of an archive take, unpacked by nothing: containerd keeps them as they are."""
    with tarfile.open(path) as file:
        return sum(one.size for one in file.getmembers() if one.isfile()) / 1e6


@functools.cache
def base() -> Path:
    """The stand-in for the Python image, as an archive; buildah knows it as BASE."""
    sources = [RECIPES / "base.Dockerfile", RECIPES / "docker-clean"]
    key = key_of([*sources, AUTHORITIES], SUITE, *BASE_PACKAGES)

    def fill(folder: Path) -> None:
        include = f"--include={','.join(BASE_PACKAGES)}"
        _run(["mmdebstrap", "--quiet", "--variant=minbase", include, SUITE, str(folder / "base.tar")])
        shutil.copy2(AUTHORITIES, folder / "ca-certificates.crt")
        shutil.copy2(RECIPES / "docker-clean", folder)

    return _made("base", key, sources[0], fill)


@functools.cache
def _pause() -> Path:
    sources = [RECIPES / "pause.Dockerfile", RECIPES / "pause.c"]

    def fill(folder: Path) -> None:
        _run(["gcc", "-static", "-Os", "-s", "-o", str(folder / "pause"), str(RECIPES / "pause.c")])

    return _made("pause", key_of(sources), sources[0], fill)


@functools.cache
def _kafka() -> Path:
    sources = [RECIPES / "kafka.Dockerfile", RECIPES / "run-class.sh"]
    jars = resolve()
    (setting,) = tool_arguments(DEFAULT_VERSION)
    logging = Path(setting.partition("=")[2].removeprefix("file:"))

    def fill(folder: Path) -> None:
        (folder / "libs").mkdir()
        for jar in (*jars, logging):
            shutil.copy2(jar, folder / "libs")
        shutil.copy2(RECIPES / "run-class.sh", folder)

    return _made("kafka", key_of([*sources, logging], base().name, *(jar.name for jar in jars)), sources[0], fill)


@functools.cache
def _client() -> Path:
    clients = sorted((RECIPES / "clients").glob("*.py"))
    pinned = (ROOT / "deploy/constraints.txt").read_text().splitlines()
    pins = [line for line in pinned if line.partition("==")[0] in CLIENT_PACKAGES]
    assert len(pins) == len(CLIENT_PACKAGES), pins

    def fill(folder: Path) -> None:
        (folder / "requirements.txt").write_text("\n".join(pins) + "\n")
        (folder / "clients").mkdir()
        for client in clients:
            shutil.copy2(client, folder / "clients")

    recipe = RECIPES / "client.Dockerfile"
    return _made("client", key_of([recipe, *clients], base().name, *pins), recipe, fill)


@functools.cache
def _project(target: str) -> Path:
    files = [ROOT / name for name in context_files((ROOT / ".dockerignore").read_text())]
    files = [path for path in files if path.is_file() and path.name != DESCRIPTION]

    def fill(folder: Path) -> None:
        (folder / DESCRIPTION).write_text("kquota\n")
        for path in files:
            to = folder / path.relative_to(ROOT)
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, to)

    key = key_of([ROOT / "Dockerfile", *files], base().name, target)
    return _made(TARGETS[target], key, ROOT / "Dockerfile", fill, target)


def _made(image: str, key: str, recipe: Path, fill: Callable[[Path], None], target: str | None = None) -> Path:
    folder = cache_dir() / "node" / "images"
    path = folder / f"{image}-{key}.tar"
    if path.is_file():
        os.utime(path)
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / ".lock"), tempfile.TemporaryDirectory(dir=folder, prefix=SCRATCH) as scratch:
        if path.is_file():
            return path
        for left in folder.glob(f"{SCRATCH}*"):  # by a build that was killed: there is one at a time
            if left != Path(scratch):
                shutil.rmtree(left)
        context = Path(scratch, "context")
        context.mkdir()
        fill(context)
        chosen = [] if target is None else ["--target", target]
        _buildah(
            "bud", "--quiet", "--layers", "--isolation", "chroot", "--network", "host", "--format", "docker", "--tag",
            name_of(image), "--build-arg", f"PYTHON_IMAGE={BASE}", *chosen, "--file", str(recipe), str(context),
        )  # fmt: skip
        fresh = Path(scratch, "fresh.tar")
        _buildah("push", "--quiet", name_of(image), f"docker-archive:{fresh}:{name_of(image)}")
        fresh.rename(path)
        for old in oldest(folder.glob(f"{image}-????????????????.tar"), but=KEPT_OF_EACH):
            old.unlink()
    return path


def _buildah(*arguments: str) -> None:
    store = cache_dir() / "node" / "buildah"
    where = ["--root", str(store / "root"), "--runroot", str(store / "run"), "--storage-driver", "overlay"]
    _run(["buildah", *where, *arguments])


def _run(command: list[str]) -> None:
    done = subprocess.run(["nice", *command], capture_output=True, text=True)
    if done.returncode != 0:
        said = f"{done.stdout[-4000:]}{done.stderr[-4000:]}"
        raise NoImageError(f"{' '.join(command)} ended with {done.returncode}:\n{said}")


def main() -> None:
    for image in sys.argv[1:] or ("base", "pause", "client", "kafka", *TARGETS.values()):
        began = time.monotonic()
        path = archive(image)
        print(f"· {name_of(image)}: {size_mb(path):.0f} MB ({time.monotonic() - began:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
