"""`make chart-package`: the chart as a publisher publishes it, with the addresses that the repository does not know.

    python -m tests.lab.chart_package --home URL [--source URL …] [--image REPOSITORY] [--out DIR]

A copy of the chart gets `home`, `sources`, its maintainers' address and, for Artifact Hub, links, images and what
CHANGELOG.md says of its version; `helm package` packs it. Nothing is pushed.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import yaml

from tests.lab.chart import CHART

CHANGELOG: Final = CHART.parents[1] / "CHANGELOG.md"
_KINDS: Final = ("added", "changed", "deprecated", "removed", "fixed", "security")
"""Headings of a changelog, and Artifact Hub's names for them."""


def changes(text: str, version: str) -> list[dict[str, str]]:
    """The entries of CHANGELOG.md for a version: the first sentence of each item, as Artifact Hub shows them."""
    section = re.search(rf"^## \[?{re.escape(version)}\]?.*?\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    found: list[dict[str, str]] = []
    kind = "changed"
    for line in re.split(r"\n(?=- |### )", section[1] if section else ""):
        heading = re.match(r"### (\w+)", line)
        if heading:
            kind = heading[1].lower() if heading[1].lower() in _KINDS else "changed"
            line = line[heading.end() :].strip()
        if item := re.match(r"- (.*)", line, re.DOTALL):
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(item[1].replace("**", "").split()))
            found.append({"kind": kind, "description": re.split(r"(?<=\.) ", plain, maxsplit=1)[0]})
    return found


def described(chart: dict[str, Any], home: str, sources: list[str], image: str, changelog: str) -> dict[str, Any]:
    """Chart.yaml with a publisher's addresses. Raises ValueError for an invalid one."""
    for address in (home, *sources):
        if urlsplit(address).scheme not in ("http", "https") or not urlsplit(address).netloc:
            raise ValueError(f"{address}: expected an address that begins with https://")
    annotations = dict(chart["annotations"])
    names = {"kquota": "", "kquota-redirect": "-redirect", "kquota-analysis": "-analysis"}
    images = [{"name": name, "image": f"{image}{end}:{chart['appVersion']}"} for name, end in names.items()]
    links = [{"name": "source", "url": one} for one in sources]
    shown = {"changes": changes(changelog, chart["version"]), "images": images if image else [], "links": links}
    for name, value in shown.items():
        if value:
            annotations[f"artifacthub.io/{name}"] = yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
    maintainers = [one | {"url": home} for one in chart["maintainers"]]
    return chart | {"home": home, "sources": sources, "maintainers": maintainers, "annotations": annotations}


def package(home: str, sources: list[str], image: str, out: Path, helm: str = "helm") -> Path:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    changed = described(chart, home, sources, image, CHANGELOG.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / chart["name"]
        shutil.copytree(CHART, copy)
        (copy / "Chart.yaml").write_text(yaml.safe_dump(changed, sort_keys=False, allow_unicode=True), encoding="utf-8")
        out.mkdir(parents=True, exist_ok=True)
        subprocess.run([helm, "package", str(copy), "--destination", str(out)], check=True, stdout=subprocess.DEVNULL)
    return out / f"{chart['name']}-{chart['version']}.tgz"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--home", required=True, help="the project's page")
    options.add_argument("--source", action="append", default=[], help="where its source is; repeatable")
    options.add_argument("--image", default="", help="the image's repository, without a tag")
    options.add_argument("--out", type=Path, default=Path("dist"))
    given = options.parse_args()
    try:
        print(package(given.home, given.source or [given.home], given.image, given.out))
    except (ValueError, OSError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
