"""The picture of a report's page in docs/images: `python docs/_site/picture_reports.py` (minutes; Java 17 or 21).

Of a generated fleet (`tests.lab.fleet`): a week of forty sidecars, in light at 1300 pixels.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.support.browser import browser, resize, save_picture  # noqa: E402

KQUOTA: Final = str(Path(sys.executable).with_name("kquota"))
REPORT: Final = "throttling"
PICTURE: Final = ROOT / "docs" / "images" / f"report-{REPORT}.png"
WIDTH: Final = 1300
HIGHEST: Final = 1700
"""Pixels of a picture: the head of a page shows what it is like."""
NO_SCROLLBARS: Final = """
const style = document.createElement("style");
style.textContent = "::-webkit-scrollbar { display: none; }";
document.head.append(style);
"""
"""The browser's own setting hides none of a window without a screen."""
FLEET: Final = ("--sidecars", "40", "--days", "7", "--apps", "12", "--parts", "4", "--quiet")


def main() -> None:
    """Generate, report, take."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        run(folder, sys.executable, "-m", "tests.lab.fleet", "--output", "usage", *FLEET)
        run(folder, KQUOTA, "report", REPORT, "--input", "usage", "--output", "reports", "--quiet")
        take(folder / "reports" / REPORT / "report.html")


def run(folder: Path, *command: str) -> None:
    """One step in the folder, so that pages name relative paths alone."""
    subprocess.run(command, cwd=folder, check=True, env=os.environ | {"PYTHONPATH": str(ROOT)})


def take(page: Path) -> None:
    """The head of the page."""
    with browser(WIDTH) as driver:
        driver.get(page.as_uri())
        assert str(page.parents[2]) not in driver.execute_script("return document.body.innerText"), "a temporary path"
        height = min(HIGHEST, driver.execute_script("return document.documentElement.scrollHeight"))
        resize(driver, WIDTH, height)
        driver.execute_script(NO_SCROLLBARS)
        save_picture(driver, PICTURE)
    print(f"docs/images/{PICTURE.name}")


if __name__ == "__main__":
    main()
