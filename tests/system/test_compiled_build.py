"""Building the data path: compiled where that is possible, Python where not, and never stale."""

import importlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from quota import compiled
from tests.support.programs import program

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
BUILDER = Path(sys.prefix) / "build/bin/python"
LIMIT_S = 240.0
"""For one build on a busy machine."""
SMALL = "NUMBER = {}\n"
"""A module of C that is compiled quickly."""
SAYS = "kquota: the data path is not compiled, it stays pure Python: "
ALONE = [sys.executable, "-S", "-c"]
"""A Python without what is installed: this checkout's kquota would lend its modules to packages of the same name."""
SUFFIX = EXTENSION_SUFFIXES[0]


def test_ci_runs_compiled() -> None:
    """And where it is compiled, it is from the source that is here."""
    if os.environ.get("CI") or os.environ.get("KQUOTA_PURE") == "0":
        assert not compiled.WHY_NOT
    if compiled.WHY_NOT:
        return
    types = [*ROOT.glob("quota/*.pxd"), *ROOT.glob("proxy/*/*/*.pxd")]
    assert len(types) > 20
    for one in types:
        package = ".".join(one.parent.relative_to(ROOT).parts)
        module = importlib.import_module(f"{package}.{one.stem}")
        part_of_others = one.stem in ("integers", "ticks")
        place = one.with_suffix(".py") if part_of_others else compiled.built(package) / f"{one.stem}{SUFFIX}"
        assert module.__file__ == str(place)


def _run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Without what decides in this process how kquota is built and run."""
    without = {name: value for name, value in os.environ.items() if name not in ("KQUOTA_PURE", "CC", "PYTHONPATH")}
    return subprocess.run(
        command, cwd=cwd, env=without | environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


COMPILED_ONLY = pytest.mark.skipif(bool(compiled.WHY_NOT), reason=f"the data path is not compiled: {compiled.WHY_NOT}")


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what runs, compiled code and all; changed only by `_changed`."""
    folder = tmp_path_factory.mktemp("copied")
    for package in ("quota", "proxy"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def _what_runs(copied: Path) -> str:
    """Why it is not the compiled code, and what two modules are loaded from."""
    code = "import quota.rate, proxy.net.io.pair as io; from quota import compiled; "
    code += "print(compiled.WHY_NOT, *(one.__file__.rpartition('.')[2] for one in (quota.rate, io)))"
    done = _run(sys.executable, "-c", code, cwd=copied, KQUOTA_PURE="0")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@contextmanager
def _changed(path: Path, content: bytes | None) -> Iterator[None]:
    """The file has another content, or (None) is not there, until the block is over."""
    whole = path.read_bytes()
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    try:
        yield
    finally:
        path.write_bytes(whole)


@COMPILED_ONLY
@pytest.mark.parametrize(
    "edited", ["quota/rate.py", "quota/rate.pxd", "proxy/net/io/calls.pyx", "proxy/net/io/pair.py"]
)
def test_edited_source_runs_as_python(edited: str, copied: Path) -> None:
    """All of it then: compiled modules know each other's layout."""
    assert _what_runs(copied) == "so so"
    with _changed(copied / edited, (copied / edited).read_bytes() + b"# edited\n"):
        assert _what_runs(copied) == f"{edited} has changed since it was compiled: make compile py py"


@COMPILED_ONLY
def test_compiled_code_runs_whole_or_not_at_all(copied: Path) -> None:
    with _changed(copied / f"quota/_compiled/rate{SUFFIX}", b"compiled for another machine"):
        assert _what_runs(copied).endswith(" py py")
    with _changed(copied / f"proxy/net/io/_compiled/pair{SUFFIX}", None):
        assert _what_runs(copied) == "proxy/net/io/pair.py is not compiled for this Python py py"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What a wheel is made of, with little code: a build of it takes a second or two."""
    folder = tmp_path / "checkout"
    packages = ("quota/__init__.py", "quota/compiled.py", "proxy/__init__.py", "proxy/net/io/__init__.py")
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", *packages):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    (folder / "proxy/net/io/calls.pyx").write_text(SMALL.format(1))
    (folder / "proxy/net/io/calls.pxd").touch()
    (folder / "proxy/net/io/calls.py").write_text("NUMBER = 0\n")
    (folder / "quota/rate.py").write_text("class SampledRate:\n    pass\n")
    (folder / "quota/rate.pxd").write_text("cdef class SampledRate:\n    pass\n")
    return folder


def _build(checkout: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """By this pip, with the packages that build the wheel in the image: those that `make` compiles with."""
    assert BUILDER.exists(), "`make compile` makes it"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(BUILDER)]
    options = ("--verbose", "--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", "dist")
    return _run(*pip, "wheel", *options, ".", cwd=checkout, **environment)


def _wheel(checkout: Path, **environment: str) -> tuple[Path, str]:
    """The wheel of a checkout, and what pip said."""
    shutil.rmtree(checkout / "dist", ignore_errors=True)
    done = _build(checkout, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (checkout / "dist").iterdir()
    return wheel, done.stdout + done.stderr


def _number(wheel: Path, into: Path) -> str:
    """Which code the module of a wheel is: 0 for its Python."""
    shutil.rmtree(into, ignore_errors=True)
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(into)
    done = _run(*ALONE, "from proxy.net.io import calls; print(calls.NUMBER)", cwd=into)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_wheel_has_code_compiled_from_its_source(checkout: Path, tmp_path: Path) -> None:
    """Two builds in one place: what the first has left does not get into the second."""
    program("gcc", "gcc")
    (checkout / "proxy/net/io/calls.pyx").write_text(SMALL.format(2))
    wheel, said = _wheel(checkout)
    assert SAYS not in said
    (command,) = (line.split() for line in said.splitlines() if " -c " in line and "calls.c" in line)
    assert [word for word in command if word.startswith("-O")][-1] == "-O2"
    assert not [word for word in command if word.startswith("-march")], "images move between machines"
    assert "-any.whl" not in wheel.name, "it is for one Python and one kind of machine"
    with zipfile.ZipFile(wheel) as opened:
        (metadata,) = (name for name in opened.namelist() if name.endswith("/METADATA"))
        assert "Requires-Dist: Cython" not in opened.read(metadata).decode()
        modules = sorted(name for name in opened.namelist() if name.startswith(("quota/", "proxy/net/io/")))
        sums = opened.read("quota/_compiled/SHA256SUMS").decode()
    parts = [
        "proxy/net/io/__init__.py", f"proxy/net/io/_compiled/calls{SUFFIX}", "proxy/net/io/calls.py",
        "quota/__init__.py", "quota/_compiled/SHA256SUMS", f"quota/_compiled/rate{SUFFIX}",
        "quota/compiled.py", "quota/rate.py",
    ]  # fmt: skip
    assert modules == parts, "no C code, no source of any"
    sources = ["proxy/net/io/calls.pxd", "proxy/net/io/calls.pyx", "quota/rate.pxd", "quota/rate.py"]
    assert [line.split("  ")[1] for line in sums.splitlines()] == sources
    assert not list((checkout / "proxy").rglob("*.c")), "nor next to the sources"
    assert _number(wheel, tmp_path / "installed") == "2"

    (checkout / "proxy/net/io/calls.pyx").write_text(SMALL.format(1))
    wheel, said = _wheel(checkout, CC="false")
    assert f"{SAYS}command " in said
    assert _number(wheel, tmp_path / "installed") == "0"


def test_required_compilation_that_fails_is_an_error(checkout: Path) -> None:
    done = _build(checkout, KQUOTA_PURE="0", CC="false")
    assert done.returncode != 0
    assert "'/usr/bin/false' failed with exit code 1" in done.stdout + done.stderr or "false" in done.stdout
