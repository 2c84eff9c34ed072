"""The compiled code under AddressSanitizer and UBSan, the short version; `make sanitize` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import sanitize
from tests.one_source import case
from tests.support.programs import program

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
"""Compiling takes minutes where the cache has nothing and the other core is busy."""


@pytest.fixture(scope="module")
def library() -> Path:
    program("gcc", "gcc")
    found = sanitize.runtime()
    assert found is not None, "gcc is there without its libasan"
    sanitize.build()
    return found


def test_the_sanitizers_are_at_work(library: Path) -> None:
    """What runs below is instrumented, and a report ends it."""
    code = "from quota import compiled; from proxy.net.io import pair; print(compiled.description(), pair.__file__)"
    done = sanitize.run(library, "-c", code)
    assert done.stdout == f"compiled {next(sanitize.TREE.glob('proxy/net/io/_compiled/pair.*.so'))}\n", done.stderr
    for built in sanitize.TREE.glob("*/**/*.so"):
        symbols = built.read_bytes()
        assert b"__asan_report_load8" in symbols, built
        assert b"__ubsan_handle_" in symbols, built
    freed = "import ctypes; libc = ctypes.CDLL(None); libc.malloc.restype = ctypes.c_void_p; "
    freed += "at = ctypes.c_void_p(libc.malloc(8)); libc.free(at); libc.free(at)"
    done = sanitize.run(library, "-c", freed)
    assert done.returncode == sanitize.EXIT_CODE
    assert "ERROR: AddressSanitizer: attempting double-free" in done.stderr


def test_streams_and_charges_bring_about_no_report(library: Path) -> None:
    done = sanitize.run(library, *sanitize.pytest_arguments(sanitize.TESTS[:1]), KQUOTA_EXAMPLES="8", timeout_s=200)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout


def test_random_operations_on_a_ledger_bring_about_none(library: Path) -> None:
    done = sanitize.run(library, "-m", "tests.one_source", "--cases", "4", timeout_s=200)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    first, *lines = done.stdout.splitlines()
    assert first == "arithmetic: compiled"
    assert lines == [f"{seed} {case(seed)}" for seed in (1, 2, 3, 4)]


def test_records_of_tls_cut_and_forged_bring_about_none(library: Path) -> None:
    done = sanitize.run(library, *sanitize.pytest_arguments(sanitize.TESTS[2:]), timeout_s=200)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout


@pytest.mark.parametrize("name", sanitize.FUZZED)
def test_mutations_of_recorded_traffic_bring_about_none(library: Path, tmp_path: Path, name: str) -> None:
    argv = sanitize.fuzz_arguments(name, tmp_path, seconds=200, runs=30)
    done = sanitize.run(library, *argv, timeout_s=280)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    assert "#30 DONE" in done.stdout
