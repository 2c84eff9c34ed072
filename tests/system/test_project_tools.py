"""The project's own tools, run for real: workflows by actionlint, hooks by pre-commit, a release up to publishing."""

import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests import release_check
from tests.support import go_tools

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]


def test_actionlint_passes() -> None:
    actionlint = go_tools.program("actionlint", "github.com/rhysd/actionlint/cmd/actionlint")
    command = [actionlint, "-no-color", *sorted((ROOT / ".github/workflows").iterdir())]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, ""), done


@pytest.mark.timeout(900)  # two builds and an installation: on a slow machine with other tests, over 300 s
def test_a_release_is_built_installed_and_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`make release-check`, without compiling: tests/system/test_compiled_build.py and the image's tests do that."""
    monkeypatch.setenv("KQUOTA_PURE", "1")
    sdist, wheel, *bills, sums = release_check.check(ROOT, tmp_path / "dist")
    with tarfile.open(sdist) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    assert {"setup.py", "quota/ledger.py", "quota/ledger.pxd", "LICENSE", "README.md"} <= names
    installed = zipfile.ZipFile(wheel).namelist()
    assert {"quota/ledger.py", "proxy/app/cli/main.py", "proxy/app/admin/ui/static/index.html"} <= set(installed)
    assert not [name for name in installed if name.startswith(("tests/", "benchmarks/", "docs/"))]
    assert [one.name.partition("-0")[0] for one in bills] == ["kquota", "kquota"]
    assert len(sums.read_text().splitlines()) == 4


def test_the_image_s_packages_are_there_for_arm64(tmp_path: Path) -> None:
    """As the image's build asks for them: wheels alone, each with a sum of the lock file."""
    lock = ROOT / "deploy/image/sidecar.txt"
    where = ["--platform", "manylinux2014_aarch64", "--platform", "manylinux_2_28_aarch64", "--python-version", "3.11"]
    ways = ["--quiet", "--only-binary", ":all:", "--no-deps", "--require-hashes", "--dest", str(tmp_path)]
    command = [*release_check.PIP, "download", *ways, *where, "-r", str(lock)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    wheels = {one.name for one in tmp_path.iterdir()}
    locked = [line for line in lock.read_text().splitlines() if "==" in line]
    assert len(wheels) == len(locked)
    compiled = [one for one in wheels if not one.endswith("-any.whl")]
    assert compiled
    assert all("aarch64" in one for one in compiled), compiled
