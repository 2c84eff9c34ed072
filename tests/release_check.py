"""Is this checkout fit to be released? `make release-check` builds what would be published, and uses it.

    python -m tests.release_check [--tag vX.Y.Z] [--out DIR]

The version has to be the same in pyproject.toml and the chart, with a dated section of CHANGELOG.md, and the tag's, if
one is named. The sdist is built from the checkout and the wheel from the sdist (so that the sdist has all it needs);
twine reads their metadata; the wheel is installed in an empty environment, where `kquota --version`, `kquota check`
and `kquota schema` have to work. The wheel is built a second time, in another place, and has to be the same to the
byte. What is in that environment, and what the image's lock file names, is written down as CycloneDX. All that was
built is left in DIR (`dist`), with SHA256SUMS.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
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
PIP = [sys.executable, "-m", "pip"]
SECTION = r"^## \[?{version}\]? [-–] (\d{{4}}-\d{{2}}-\d{{2}})$"
CONFIG = """\
listen: {port: 9092}
upstream: {bootstrap: ["broker.example:9092"]}
quotas:
  - user: alice
    producer_byte_rate: 1M
"""


class NotFitError(Exception):
    """Something that must not be released as it is; the text says what and where."""


def version_of(root: Path) -> str:
    version: str = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    chart: dict[str, Any] = yaml.safe_load((root / "helm/kquota/Chart.yaml").read_text())
    for name in ("version", "appVersion"):
        if chart[name] != version:
            raise NotFitError(f"helm/kquota/Chart.yaml: {name} is {chart[name]}, pyproject.toml has {version}")
    released_on(root, version)
    return version


def released_on(root: Path, version: str = "") -> datetime.date:
    """The day of this version's section in CHANGELOG.md; of the version in pyproject.toml, if none is named."""
    version = version or tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    dated = re.search(SECTION.format(version=re.escape(version)), (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    if dated is None:
        raise NotFitError(f'CHANGELOG.md: no section "## [{version}] - YYYY-MM-DD"')
    try:
        day = datetime.date.fromisoformat(dated[1])
    except ValueError as error:
        raise NotFitError(f"CHANGELOG.md: the date of {version}: {error}") from None
    if day > datetime.datetime.now(datetime.UTC).date():
        raise NotFitError(f"CHANGELOG.md: {version} is dated {day}, which is still to come")
    return day


def _run(command: Sequence[str | Path], cwd: Path) -> str:
    words, env = [str(one) for one in command], _environment()
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=STEP_LIMIT_S, env=env)
    if done.returncode != 0:
        raise NotFitError(f"`{' '.join(words)}` ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def _environment() -> dict[str, str]:
    """Nothing of this checkout on the path; every package as it is pinned, those that build included, which are not
    compiled to bytecode, as each is used once."""
    without = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    # (PIP_NO_COMPILE=1 would ask for bytecode.)
    return without | {"PIP_CONSTRAINT": str(PINS), "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_COMPILE": "0"}


def check(root: Path, out: Path, tag: str = "") -> list[Path]:
    """Build, read, install, use. Returns what would be published."""
    version, day = version_of(root), released_on(root)
    if tag and tag != f"v{version}":
        raise NotFitError(f"the tag is {tag}, the version {version}: the tag has to be v{version}")
    shutil.rmtree(out, ignore_errors=True)
    # Times in the wheel are those of the day of the release, whenever it is built: reproducible-builds.org.
    midnight = datetime.datetime.combine(day, datetime.time(), datetime.UTC)
    os.environ["SOURCE_DATE_EPOCH"] = str(int(midnight.timestamp()))
    print(f"· building kquota {version}: the sdist, and the wheel from it", flush=True)
    _run([sys.executable, "-m", "build", "--outdir", out, root], root)
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    print("· the same wheel again, somewhere else", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        shutil.unpack_archive(sdist, scratch, filter="data")
        (source,) = Path(scratch).iterdir()
        _run([sys.executable, "-m", "build", "--wheel", "--outdir", Path(scratch, "again"), source], Path(scratch))
        if _sum(wheel) != _sum(Path(scratch, "again", wheel.name)):
            raise NotFitError(f"{wheel.name}: built twice from the same sdist, and not the same")
    print("· twine check", flush=True)
    _run([sys.executable, "-m", "twine", "check", "--strict", sdist, wheel], root)
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        print("· installing the wheel in an empty environment", flush=True)
        _run([sys.executable, "-m", "venv", "--without-pip", home / "venv"], home)
        _run([*PIP, "--python", home / "venv/bin/python", "install", "--quiet", wheel], home)
        kquota = home / "venv/bin/kquota"
        said = _run([kquota, "--version"], home)
        if not said.startswith(f"kquota {version},"):
            raise NotFitError(f"`kquota --version` says {said.strip()!r}, not {version}")
        (home / "kquota.yaml").write_text(CONFIG)
        _run([kquota, "check", "--config", home / "kquota.yaml"], home)
        _run([kquota, "schema"], home)
        print("· bills of materials", flush=True)
        bills = bills_of_materials(root, out, version, home / "venv/bin/python")
    built = [sdist, wheel, *bills]
    sums = out / "SHA256SUMS"
    sums.write_text("".join(f"{_sum(one)}  {one.name}\n" for one in built))
    return [*built, sums]


def bills_of_materials(root: Path, out: Path, version: str, python: Path) -> list[Path]:
    """CycloneDX (ECMA-424) of an environment with the wheel in it, and of the Python packages of the sidecar's image.
    The tool checks both against CycloneDX's schema; here they are held to what is installed and what is locked."""
    tool = [sys.executable, "-m", "cyclonedx_py"]
    ways = ["--output-reproducible", "--validate", "--pyproject", root / "pyproject.toml", "--mc-type", "application"]
    wheel, image = out / f"kquota-{version}.cdx.json", out / f"kquota-{version}-image.cdx.json"
    lock = root / "deploy/image/sidecar.txt"
    _run([*tool, "environment", *ways, "--output-file", wheel, python], root)
    _run([*tool, "requirements", *ways, "--output-file", image, lock], root)
    listed = json.loads(_run([*PIP, "--python", python, "list", "--format", "json"], root))
    installed = {(_normal(one["name"]), one["version"]) for one in listed} - {("kquota", version)}
    pins = re.findall(r"^([\w.-]+)==([\w.!+-]+)", lock.read_text(), re.MULTILINE)
    locked = {(_normal(name), pinned) for name, pinned in pins}
    for bill, wanted in ((wheel, installed), (image, locked)):
        content = json.loads(bill.read_text())
        found = {(_normal(one["name"]), one["version"]) for one in content["components"]} - {("kquota", version)}
        if found != wanted:
            raise NotFitError(f"{bill.name}: {sorted(found ^ wanted)} are in it or in {lock.name}, not in both")
        about = content["metadata"]["component"]
        if (about["name"], about["version"]) != ("kquota", version):
            raise NotFitError(f"{bill.name}: is of {about['name']} {about['version']}")
    return [wheel, image]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _sum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main() -> int:
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
