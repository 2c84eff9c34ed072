"""Building the data path's lane: compiled where that is possible, left out where not, and never stale."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from typer.testing import CliRunner

from deploy.cli.main import app
from proxy import lane
from quota import compiled
from tests.support.programs import program

ROOT = Path(__file__).resolve().parents[2]
BUILDER = Path(sys.prefix) / "build/bin/python"
LIMIT_S = 240.0
"""For one build on a busy machine."""
SMALL = "# cython: language_level=3, boundscheck=False, wraparound=False\nABI = {}\n"
"""A lane that is compiled quickly."""
SAYS = "kquota: the data path stays pure Python, its lane is not compiled: "
ALONE = [sys.executable, "-S", "-c"]
"""A Python without what is installed: this checkout's kquota would lend its modules to packages of the same name."""
SUFFIX = EXTENSION_SUFFIXES[0]


def test_ci_runs_with_the_lane_compiled() -> None:
    """What has been compiled is compiled from the source that is here."""
    if os.environ.get("CI") or os.environ.get("KQUOTA_PURE") == "0":
        assert lane.COMPILED, lane.WHY_NOT
    if not lane.COMPILED:
        assert lane.WHY_NOT
        return
    import proxy._lane
    import proxy.tls.channel

    assert proxy.tls.channel.WHY_NOT == "", "OpenSSL is called directly on this Python"
    assert proxy._lane.__file__ is not None
    built = Path(proxy._lane.__file__)
    assert built.name == f"_lane{SUFFIX}"
    for source in ("proxy/_lane.pyx", "setup.py"):
        assert built.stat().st_mtime >= (ROOT / source).stat().st_mtime, f"{source} has changed since: `make lane`"
    for types in ROOT.glob("quota/*.pxd"):
        module = importlib.import_module(f"quota.{types.stem}")
        assert module.__file__ == str(compiled.DIRECTORY / f"{types.stem}{SUFFIX}")


def _lane_with(**environment: str) -> str:
    code = "from proxy import lane; print(lane.COMPILED, lane.WHY_NOT, lane.DESCRIPTION, sep='|')"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=_environment(**environment), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def _environment(**more: str) -> dict[str, str]:
    """This process's, without what decides how kquota is built and run."""
    without = {name: value for name, value in os.environ.items() if name not in ("KQUOTA_PURE", "CC", "PYTHONPATH")}
    return without | more


@pytest.mark.parametrize("value", ["1", "yes"])
def test_the_environment_switches_the_lane_off(value: str) -> None:
    assert _lane_with(KQUOTA_PURE=value) == "False|KQUOTA_PURE is set|pure Python: KQUOTA_PURE is set"


def test_a_checkout_runs_what_is_written_there_unless_asked() -> None:
    why = "this is a checkout, where KQUOTA_PURE=0 asks for compiled code"
    assert _lane_with() == _lane_with(KQUOTA_PURE="") == f"False|{why}|pure Python: {why}"
    if lane.COMPILED:
        assert _lane_with(KQUOTA_PURE="0") == "True||compiled"


@pytest.mark.skipif(not lane.COMPILED, reason=f"the lane is not compiled: {lane.WHY_NOT}")
@pytest.mark.parametrize("edited", ["quota/rate.py", "quota/rate.pxd", "proxy/_lane.pyx"])
def test_an_edited_source_is_what_runs(edited: str, tmp_path: Path) -> None:
    """All of it then: compiled modules know each other's layout."""
    for package in ("quota", "proxy"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    code = "import quota.rate, quota.window; from proxy import lane; "
    code += "print(lane.WHY_NOT, *(one.__file__.rpartition('.')[2] for one in (quota.rate, quota.window)))"

    def run() -> str:
        environment = _environment(KQUOTA_PURE="0")
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    assert run() == "so so"
    with (tmp_path / edited).open("a") as source:
        source.write("# edited\n")
    assert run() == f"{edited} has changed since it was compiled: make lane py py"
    shutil.copy(ROOT / edited, tmp_path / edited)
    (tmp_path / "quota/_compiled" / f"rate{SUFFIX}").write_bytes(b"compiled for another machine")
    assert run().endswith(" py py")
    (tmp_path / "quota/_compiled" / f"rate{SUFFIX}").unlink()
    assert run() == "quota/rate.py is not compiled for this Python py py"


def test_without_a_compiled_lane_the_import_says_why(tmp_path: Path) -> None:
    package = tmp_path / "proxy"
    package.mkdir()
    (package / "__init__.py").touch()
    shutil.copy(ROOT / "proxy/lane.py", package)
    (tmp_path / "quota").mkdir()
    for name in ("__init__", "compiled", "rate"):
        shutil.copy(ROOT / f"quota/{name}.py", tmp_path / "quota")
    code = "from proxy import lane; print(lane.COMPILED, lane.WHY_NOT)"

    def run() -> str:
        done = subprocess.run([*ALONE, code], cwd=tmp_path, env=_environment(), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run() == "False it has not been compiled\n"
    (tmp_path / "quota/_compiled").mkdir()
    (tmp_path / "quota/_compiled/SHA256SUMS").touch()
    assert run() == "False No module named 'proxy._lane'\n"
    (package / f"_lane{SUFFIX}").write_bytes(b"compiled for another machine")
    assert "invalid ELF header" in run() or "file too short" in run()


def test_the_version_says_which_lane_runs() -> None:
    shown = CliRunner().invoke(app, ["--version"])
    assert (shown.exit_code, shown.stdout.startswith("kquota ")) == (0, True)
    assert shown.stdout.endswith(f", data path: {lane.DESCRIPTION}\n")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What a wheel is made of, with little code: a build of it takes a second or two."""
    folder = tmp_path / "checkout"
    quota = ("quota/__init__.py", "quota/compiled.py")
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "proxy/__init__.py", "proxy/lane.py", *quota):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    (folder / "proxy/_lane.pyx").write_text(SMALL.format(lane.ABI))
    (folder / "quota/rate.py").write_text("class SampledRate:\n    pass\n")
    (folder / "quota/rate.pxd").write_text("cdef class SampledRate:\n    pass\n")
    return folder


def _build(checkout: Path, *argv: str, python: Path = BUILDER, **environment: str) -> subprocess.CompletedProcess[str]:
    """By this pip, with the packages that build the wheel in the image: those that `make` compiles with."""
    assert BUILDER.exists(), "`make lane` makes it"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
    return subprocess.run(
        [*pip, argv[0], "--verbose", "--no-index", "--no-deps", "--no-build-isolation", *argv[1:], "."],
        cwd=checkout,
        env=_environment(**environment),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )


def _wheel(checkout: Path, **environment: str) -> tuple[Path, str]:
    """The wheel of a checkout, and what pip said."""
    shutil.rmtree(checkout / "dist", ignore_errors=True)
    done = _build(checkout, "wheel", "--wheel-dir", "dist", **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (checkout / "dist").iterdir()
    return wheel, done.stdout + done.stderr


def _abi(wheel: Path, into: Path) -> str:
    """What the lane in a wheel says, or why there is none."""
    shutil.rmtree(into, ignore_errors=True)
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(into)
    code = "try:\n import proxy._lane as _lane\n print(_lane.ABI)\nexcept ImportError as error:\n print(error)"
    return _alone(code, into)


def _alone(code: str, into: Path) -> str:
    done = subprocess.run([*ALONE, code], cwd=into, env=_environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_wheel_has_the_lane_of_the_source_or_none(checkout: Path, tmp_path: Path) -> None:
    """Two builds in one place: what the first has left does not get into the second."""
    program("gcc", "gcc")
    other = lane.ABI + 1
    (checkout / "proxy/_lane.pyx").write_text(SMALL.format(other))
    wheel, said = _wheel(checkout)
    assert SAYS not in said
    (command,) = (line.split() for line in said.splitlines() if " -c " in line and "_lane.c" in line)
    assert [word for word in command if word.startswith("-O")][-1] == "-O2"
    assert not [word for word in command if word.startswith("-march")], "images move between machines"
    assert "-any.whl" not in wheel.name, "it is for one Python and one kind of machine"
    with zipfile.ZipFile(wheel) as opened:
        lanes = [name for name in opened.namelist() if name.startswith("proxy/_lane")]
        (metadata,) = (name for name in opened.namelist() if name.endswith("/METADATA"))
        assert "Requires-Dist: Cython" not in opened.read(metadata).decode()
        modules = sorted(name for name in opened.namelist() if name.startswith("quota/"))
        sums = opened.read("quota/_compiled/SHA256SUMS").decode()
    assert lanes == [f"proxy/_lane{SUFFIX}"], "no C code, no source"
    parts = ["__init__.py", "_compiled/SHA256SUMS", f"_compiled/rate{SUFFIX}", "compiled.py", "rate.py"]
    assert modules == [f"quota/{name}" for name in parts]
    assert [line.split("  ")[1] for line in sums.splitlines()] == ["proxy/_lane.pyx", "quota/rate.pxd", "quota/rate.py"]
    assert not list((checkout / "proxy").glob("*.c")), "nor beside the sources"
    assert _abi(wheel, tmp_path / "installed") == str(other)
    told = _alone("from proxy import lane; print(lane.WHY_NOT)", tmp_path / "installed")
    assert told == "it was compiled from other sources: make lane", "not what this checkout's proxy.lane expects"

    (checkout / "proxy/_lane.pyx").write_text(SMALL.format(lane.ABI))
    wheel, said = _wheel(checkout, CC="false")
    assert f"{SAYS}command " in said
    assert _abi(wheel, tmp_path / "installed") == "No module named 'proxy._lane'"


def test_an_editable_installation_has_it_too(checkout: Path, tmp_path: Path) -> None:
    """In an environment of its own, to which the builder's packages are lent."""
    program("gcc", "gcc")
    venv.create(tmp_path / "venv", symlinks=True)
    python, version = tmp_path / "venv/bin/python", f"python{sys.version_info[0]}.{sys.version_info[1]}"
    lent = BUILDER.parents[1] / f"lib/{version}/site-packages"
    (tmp_path / f"venv/lib/{version}/site-packages/lent.pth").write_text(f"{lent}\n")

    def install(**environment: str) -> tuple[str, str]:
        done = _build(checkout, "install", "--editable", python=python, **environment)
        assert done.returncode == 0, done.stdout + done.stderr
        code = "from proxy import lane; print(lane.DESCRIPTION)"
        asked = _environment(KQUOTA_PURE="0")
        told = subprocess.run([str(python), "-c", code], cwd=tmp_path, env=asked, capture_output=True, text=True)
        return told.stdout.strip(), done.stdout + done.stderr

    assert install()[0] == "compiled"
    assert (checkout / f"proxy/_lane{SUFFIX}").exists()
    lane_then, said = install(CC="gcc -nostdinc")
    assert SAYS in said, "a compiler without headers is as good as none"
    assert lane_then == "pure Python: it has not been compiled", "not the one of another source"
    assert not list((checkout / "quota/_compiled").iterdir())


def test_without_a_compiler_that_is_said(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("sh", "env"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name) or name)
    _, said = _wheel(checkout, PATH=str(tmp_path / "bin"))
    assert f"{SAYS}no C compiler (gcc)" in said


def test_a_pure_wheel_can_be_asked_for(checkout: Path) -> None:
    wheel, said = _wheel(checkout, KQUOTA_PURE="1")
    assert f"{SAYS}KQUOTA_PURE is set" in said
    assert wheel.name.endswith("-py3-none-any.whl")


def test_what_has_to_be_compiled_and_cannot_be_is_an_error(checkout: Path) -> None:
    done = _build(checkout, "wheel", "--wheel-dir", "dist", KQUOTA_PURE="0", CC="false")
    assert done.returncode != 0
    assert "'/usr/bin/false' failed with exit code 1" in done.stdout + done.stderr or "false" in done.stdout


def test_a_mistake_in_the_source_is_an_error(checkout: Path) -> None:
    """Of ours, not of the machine: it is not taken for a missing compiler."""
    (checkout / "proxy/_lane.pyx").write_text("cdef int x = nobody_knows_this\n")
    done = _build(checkout, "wheel", "--wheel-dir", "dist")
    assert done.returncode != 0
    assert "undeclared name not builtin: nobody_knows_this" in done.stdout + done.stderr


def test_without_cython_that_is_said(checkout: Path) -> None:
    """Only without build isolation: pip brings what pyproject.toml names."""
    code = (
        "import runpy, sys; sys.modules['Cython'] = None; sys.argv = ['setup.py', 'build_ext']; "
        "runpy.run_path('setup.py')"
    )
    done = subprocess.run([str(BUILDER), "-c", code], cwd=checkout, env=_environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"{SAYS}Cython is not installed" in done.stderr


def test_what_builds_is_pinned_within_the_range_that_is_declared() -> None:
    declared = [
        Requirement(one) for one in tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    ]
    locked = dict(re.findall(r"^(\S+)==(\S+) ", (ROOT / "deploy/image/build.txt").read_text(), re.MULTILINE))
    assert {one.name.lower() for one in declared} <= locked.keys()
    for one in declared:
        assert locked[one.name.lower()] in one.specifier, one


@pytest.mark.parametrize("target", [".demo", ".analysis", ".dev", ".bench"])
def test_make_compiles_a_changed_lane_for_every_environment(target: str) -> None:
    def would_do(*arguments: str) -> str:
        done = subprocess.run(
            ["make", "--dry-run", *arguments, f".venv/{target}"],
            cwd=ROOT,
            env=_environment(MAKEFLAGS="", MAKELEVEL="0"),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    changed = would_do("--what-if=proxy/_lane.pyx")
    assert "setup.py --quiet build_ext --inplace" in changed
    if not would_do():
        assert "pip" not in changed, "what is installed stays so, without a network"
