"""Is this checkout fit to be released? `make release-check` builds what would be published, and uses it.

    python -m tests.release_check [--tag vX.Y.Z] [--out DIR]

The version has to be the same in pyproject.toml and the chart, with a dated section of CHANGELOG.md, and the tag's, if
one is named. The sdist is built from the checkout and the wheel from the sdist (so that the sdist has all it needs);
twine reads their metadata; the wheel is installed in an empty environment, where `kquota --version`, `kquota check`
and `kquota schema` have to work. What was built is left in DIR (`dist`), with SHA256SUMS.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
PINS = ROOT / "deploy/constraints.txt"
STEP_LIMIT_S = 600.0
SECTION = r"^## \[?{version}\]? [-–] (\d{{4}}-\d{{2}}-\d{{2}})$"
CONFIG = """\
listen: {port: 19092}
upstream: {bootstrap: ["broker.example:9092"]}
quotas:
  - user: alice
    producer_byte_rate: 1M
"""


class NotFitError(Exception):
    """Something that must not be released as it is; the text says what and where."""


def version_of(root: Path) -> str:
    """The version that all the places agree on.

    Raises:
        NotFitError: they do not, or CHANGELOG.md has no section for it, dated today or before.
    """
    version: str = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    chart: dict[str, Any] = yaml.safe_load((root / "helm/kquota/Chart.yaml").read_text())
    for name in ("version", "appVersion"):
        if chart[name] != version:
            raise NotFitError(f"helm/kquota/Chart.yaml: {name} is {chart[name]}, pyproject.toml has {version}")
    dated = re.search(SECTION.format(version=re.escape(version)), (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    if dated is None:
        raise NotFitError(f'CHANGELOG.md: no section "## [{version}] - YYYY-MM-DD"')
    try:
        day = datetime.date.fromisoformat(dated[1])
    except ValueError as error:
        raise NotFitError(f"CHANGELOG.md: the date of {version}: {error}") from None
    if day > datetime.datetime.now(datetime.UTC).date():
        raise NotFitError(f"CHANGELOG.md: {version} is dated {day}, which is still to come")
    return version


def _run(command: Sequence[str | Path], cwd: Path) -> str:
    done = subprocess.run(
        [str(one) for one in command], cwd=cwd, capture_output=True, text=True, timeout=STEP_LIMIT_S, env=_environment()
    )
    if done.returncode != 0:
        shown = " ".join(str(one) for one in command)
        raise NotFitError(f"`{shown}` ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def _environment() -> dict[str, str]:
    """Nothing of this checkout on the path; every package as it is pinned, those that build included."""
    without = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    return without | {"PIP_CONSTRAINT": str(PINS), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def check(root: Path, out: Path, tag: str = "") -> list[Path]:
    """Build, read, install, use. Returns what would be published.

    Raises:
        NotFitError: a step failed.
    """
    version = version_of(root)
    if tag and tag != f"v{version}":
        raise NotFitError(f"the tag is {tag}, the version {version}: the tag has to be v{version}")
    shutil.rmtree(out, ignore_errors=True)
    print(f"· building kquota {version}: the sdist, and the wheel from it", flush=True)
    _run([sys.executable, "-m", "build", "--outdir", out, root], root)
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    print("· twine check", flush=True)
    _run([sys.executable, "-m", "twine", "check", "--strict", sdist, wheel], root)
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        print("· installing the wheel in an empty environment", flush=True)
        _run([sys.executable, "-m", "venv", home / "venv"], home)
        _run([home / "venv/bin/python", "-m", "pip", "install", "--quiet", wheel], home)
        kquota = home / "venv/bin/kquota"
        said = _run([kquota, "--version"], home)
        if not said.startswith(f"kquota {version},"):
            raise NotFitError(f"`kquota --version` says {said.strip()!r}, not {version}")
        (home / "kquota.yaml").write_text(CONFIG)
        _run([kquota, "check", "--config", home / "kquota.yaml"], home)
        _run([kquota, "schema"], home)
    sums = out / "SHA256SUMS"
    sums.write_text("".join(f"{hashlib.sha256(one.read_bytes()).hexdigest()}  {one.name}\n" for one in (sdist, wheel)))
    return [sdist, wheel, sums]


def main() -> int:
    """The command line."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--tag", default="", help="the tag that the release would have")
    arguments.add_argument("--out", type=Path, default=ROOT / "dist")
    chosen = arguments.parse_args()
    try:
        built = check(ROOT, chosen.out, chosen.tag)
    except NotFitError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print("fit to be released: " + ", ".join(one.name for one in built))
    return 0


if __name__ == "__main__":
    sys.exit(main())
