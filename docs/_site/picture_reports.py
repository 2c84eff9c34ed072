"""Pictures of the reports' pages in docs/images: `python docs/_site/picture_reports.py` (minutes; Java 17 or 21).

Of a generated fleet (`analysis.fleet`): a week of forty sidecars. All in light at 1300 pixels, that of usage in dark
and on a narrow window as well.
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
IMAGES: Final = ROOT / "docs" / "images"
HIGHEST: Final = 1700
"""Pixels of a picture: the head of a page shows what it is like."""
NO_SCROLLBARS: Final = """
const style = document.createElement("style");
style.textContent = "::-webkit-scrollbar { display: none; }";
document.head.append(style);
"""
"""The browser's own setting hides none of a window without a screen."""
FLEET: Final = ("--sidecars", "40", "--days", "7", "--apps", "12", "--parts", "4", "--quiet")
PRICES: Final = """\
currency: EUR
prices: {produce_gb: 0.05, fetch_gb: 0.02}
"""
CANDIDATE: Final = """\
quotas:
  - {client-id: <default>, producer_byte_rate: 1M, consumer_byte_rate: 2M}
"""
REPORTS: Final[dict[str, tuple[str, ...]]] = {
    "usage": (),
    "throttling": (),
    "recommend": (),
    "noisy": (),
    "obedience": (),
    "capacity": ("--capacity", "produce=500000000"),
    "chargeback": ("--prices", "prices.yaml"),
    "whatif": ("--candidate", "candidate.json"),
}


def main() -> None:
    """Generate, report, take."""
    wanted = sys.argv[1:] or list(REPORTS)
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "prices.yaml").write_text(PRICES)
        (folder / "candidate.yaml").write_text(CANDIDATE)
        check = [KQUOTA, "check", "--config", folder / "candidate.yaml", "--on-paper", "--json"]
        (folder / "candidate.json").write_bytes(subprocess.run(check, check=True, stdout=subprocess.PIPE).stdout)
        run(folder, sys.executable, "-m", "analysis.fleet", "--output", "usage", *FLEET)
        for report in wanted:
            kquota = str(Path(sys.executable).with_name("kquota"))
            run(
                folder, kquota, "report", report, "--input", "usage", "--output", "reports", "--quiet", *REPORTS[report]
            )
            page = folder / "reports" / report / "report.html"
            take(page, IMAGES / f"report-{report}.png", 1300)
            if report == "usage":
                take(page, IMAGES / "report-usage-dark.png", 1300, dark=True)
                take(page, IMAGES / "report-usage-narrow.png", 390)


def run(folder: Path, *command: str) -> None:
    """One step in the folder, so that pages name relative paths alone."""
    subprocess.run(command, cwd=folder, check=True, env=os.environ | {"PYTHONPATH": str(ROOT)})


def take(page: Path, picture: Path, width: int, *, dark: bool = False) -> None:
    """The head of the page."""
    with browser(width, dark=dark) as driver:
        driver.get(page.as_uri())
        assert str(page.parents[2]) not in driver.execute_script("return document.body.innerText"), "a temporary path"
        height = min(HIGHEST, driver.execute_script("return document.documentElement.scrollHeight"))
        resize(driver, width, height)
        driver.execute_script(NO_SCROLLBARS)
        save_picture(driver, picture)
    print(f"docs/images/{picture.name}")


if __name__ == "__main__":
    main()
