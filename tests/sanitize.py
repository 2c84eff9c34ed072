"""The compiled code under AddressSanitizer and UBSan: a copy of the sources with a build of its own, never in place.

    python -m tests.sanitize [--seconds N]

It runs the tests that drive the compiled code, random operations on a ledger, and the fuzz targets `connection_io`
(mutations of recorded traffic) and `tls`. Any report of the sanitizers, and any difference between the compiled code
and Python's, makes the exit code 1. (Leaks are not looked for: an interpreter leaves much behind when it ends. Tests
for those count objects.)
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TREE = ROOT / "build/sanitized"
PACKAGES = ("quota", "proxy", "config", "deploy", "tests")
BUILDER = Path(sys.prefix) / "build/bin/python"
TESTS = tuple(f"tests/loopback/test_{name}.py" for name in ("connection_io", "tls_channel", "tls_handshakes"))
EXIT_CODE = 86
BUILD_LIMIT_S = 900.0


def runtime() -> Path | None:
    """AddressSanitizer's library, which comes with gcc; None where it is not."""
    if shutil.which("gcc") is None:
        return None
    said = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    found = Path(said.stdout.strip())
    return found.resolve() if found.is_absolute() and found.exists() else None


def environment(library: Path) -> dict[str, str]:
    """For a Python, itself not instrumented, that loads instrumented code."""
    without = {name: value for name, value in os.environ.items() if name not in ("KQUOTA_PURE", "PYTHONPATH")}
    return without | {
        "LD_PRELOAD": str(library),
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": str(TREE),
        "ASAN_OPTIONS": f"detect_leaks=0:exitcode={EXIT_CODE}:malloc_context_size=4:quarantine_size_mb=64",
        "UBSAN_OPTIONS": f"halt_on_error=1:print_stacktrace=1:exitcode={EXIT_CODE}",
        "KQUOTA_PURE": "0",
    }


def build() -> None:
    """The copy, as the sources are now, compiled."""
    shutil.rmtree(TREE, ignore_errors=True)
    nothing_built = shutil.ignore_patterns("__pycache__", *(f"*{suffix}" for suffix in EXTENSION_SUFFIXES[:1]))
    for package in PACKAGES:
        shutil.copytree(ROOT / package, TREE / package, ignore=nothing_built)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, TREE / name)
    subprocess.run(
        [str(BUILDER), "setup.py", "--quiet", "build_ext", "--inplace", "--force"],
        cwd=TREE,
        env=os.environ | {"KQUOTA_PURE": "0", "KQUOTA_SANITIZE": "1", "PYTHONPATH": ""},
        check=True,
        timeout=BUILD_LIMIT_S,
    )


def run(library: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *argv]
    return subprocess.run(command, cwd=TREE, env=environment(library), capture_output=True, text=True, errors="replace")


def pytest_arguments(files: tuple[str, ...]) -> list[str]:
    """Each in this one process: a worker's end would be hard to distinguish from a sanitizer's."""
    plugins = ["-p", "no:cacheprovider", "-p", "no:xdist"]
    return ["-m", "pytest", "-q", *plugins, "-o", "addopts=--import-mode=importlib --strict-markers", *files]


FUZZED = ("connection_io", "tls")
FUZZ = "import sys; from tests.fuzz import blind; blind.main({name!r}, sys.argv[1:])"


def fuzz_arguments(name: str, directory: Path, seconds: int) -> list[str]:
    """The fuzz target, mutated blindly: atheris brings a libFuzzer with sanitizers of its own."""
    from tests.fuzz.targets import TARGETS

    target = TARGETS[name]
    target.write_seeds(seeds := directory / "seeds")
    limits = [f"-max_total_time={seconds}", "-atheris_runs=-1", f"-max_len={target.max_bytes}"]
    return ["-c", FUZZ.format(name=name), *limits, f"-artifact_prefix={directory}/", str(seeds)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60, help="of fuzzing")
    options = parser.parse_args()
    library = runtime()
    if library is None:
        sys.exit("gcc or its AddressSanitizer (libasan) is missing: install Debian's gcc")
    print("· compiling with -fsanitize=address,undefined", flush=True)
    build()
    failed = False
    ledger = ["-m", "tests.one_source", "--cases", "100"]
    fuzzed = (fuzz_arguments(name, TREE / "fuzz" / name, options.seconds // len(FUZZED)) for name in FUZZED)
    for what in (pytest_arguments(TESTS), ledger, *fuzzed):
        done = run(library, *what)
        print(done.stdout[-4000:] + done.stderr[-8000:], flush=True)
        failed = failed or done.returncode != 0
    sys.exit(failed)


if __name__ == "__main__":
    main()
