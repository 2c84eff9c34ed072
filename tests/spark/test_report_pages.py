"""Pages of reports in a real browser: nothing is cut off, in any light, and axe-core finds nothing."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import re
from importlib import resources
from typing import TYPE_CHECKING, Final

import pytest

from analysis.runner import Asked, make, make_all
from tests.support.browser import Browse, accessible
from tests.support.spark_tools import DAY_MS, T0_MS, record, write
from tests.support.waiting import until

pytestmark = pytest.mark.long

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

MB: Final = 1_000_000
CUT: Final = """
const inside = [...document.querySelectorAll(".scroll, figure, pre")];
return inside.filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.getAttribute("aria-label"));
"""
"""What has more than is seen of it."""
BROKEN: Final = """
const words = [...document.querySelectorAll("td.w span")];
return [words.length > 0, words.filter((one) => one.getClientRects().length > 1).map((one) => one.textContent)];
"""
"""Short words and times, of which none is broken at its hyphens."""
LONG_NAME: Final = "orders-service-in-the-second-region-7c9d8f6b5"


@pytest.fixture(scope="module")
def pages(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The reports with the widest tables, over forty minutes of twelve clients with names of a usual length, of which
    none stands out."""
    chance, folder, rows = random.Random(1), tmp_path_factory.mktemp("pages"), []
    limit = {"produce_limit": 2.0 * MB, "produce_limit_level": "client-id", "requests": 600, "request_seconds": 1.5}
    for minute, number in itertools.product(range(40), range(12)):
        of = {"user": f"team-{number % 3}", "client_id": f"{LONG_NAME}-{number}"}
        moved = {f"{kind}_bytes": chance.randrange(MB, 90 * MB) for kind in ("produce", "fetch")}
        rows.append(record(12 * minute + number + 1, minute * 60, duration_s=60.0, **of, **limit, **moved))
    write(folder / "in", rows)
    made = {}
    for name in ("usage", "noisy", "recommend", "throttling"):
        make(
            spark, name, Asked(str(folder / "in"), str(folder / "out"), 60, {}, quiet=True, now_ms=T0_MS + 30 * DAY_MS)
        )
        made[name] = folder / "out" / name / "report.html"
    return made


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_no_column_is_cut_off(pages: dict[str, Path], dark: bool, browse: Browse) -> None:
    for width in (1300, 800, 390):
        with browse(width, dark=dark) as driver:
            for name, page in pages.items():
                driver.get(page.as_uri())
                wide = driver.execute_script("return [document.documentElement.scrollWidth, window.innerWidth]")
                assert wide[0] <= wide[1], (name, width, "the page itself never scrolls sideways")
                whole, broken = driver.execute_script(BROKEN)
                assert broken == [], (name, width)
                assert whole or name != "usage", "nothing was looked at"
                if width == 1300:
                    assert driver.execute_script(CUT) == [], name
                accessible(driver)


def test_sorts_and_filters_tables_by_keyboard_offline(pages: dict[str, Path], browse: Browse) -> None:
    """And nothing but the page's own script may run: browsers get its hash, and may load nothing."""
    from selenium.webdriver.common.keys import Keys

    with browse(1300) as driver:
        driver.get(pages["usage"].as_uri())

        def column(number: int, name: str) -> list[str]:
            rows = driver.find_elements("css selector", f'table[data-name="{name}"] tbody tr:not([hidden])')
            return [row.find_elements("tag name", "td")[number].text for row in rows]

        table = "Clients, by bytes"
        heads = driver.find_elements("css selector", f'table[data-name="{table}"] th')
        names = [head.text for head in heads]
        by_size, by_client = names.index("produce bytes"), names.index("client id")
        as_written = column(by_size, table)
        assert len(as_written) == 12
        button = heads[by_size].find_element("tag name", "button")
        assert (button.aria_role, button.accessible_name) == ("button", "produce bytes")
        driver.execute_script("arguments[0].focus()", button)

        def pressed(key: str) -> list[str]:
            driver.switch_to.active_element.send_keys(key)
            sort = driver.execute_script("return arguments[0].getAttribute('aria-sort')", heads[by_size])
            # The script sorts a millisecond later.
            until(lambda: sorted_by(column(by_size, table), reverse=sort == "descending"))
            return column(by_size, table)

        falling = pressed(Keys.ENTER)
        assert heads[by_size].get_attribute("aria-sort") == "descending"
        assert sorted(falling) == sorted(as_written)
        rising = pressed(Keys.SPACE)
        assert heads[by_size].get_attribute("aria-sort") == "ascending"
        assert rising == falling[::-1]
        field = driver.find_element("css selector", "input[type=search]")
        assert field.accessible_name == f"Filter: {table}"
        field.send_keys("TEAM-1 b5-10")  # in any case, each word anywhere in the row
        assert column(by_client, table) == [f"{LONG_NAME}-10"]
        status = field.find_element("xpath", "../following-sibling::output")
        assert (status.text, status.aria_role) == ("1 of 12 rows", "status")
        accessible(driver)
        field.send_keys(Keys.CONTROL, "a", Keys.BACKSPACE)
        assert len(column(by_client, table)) == 12
        assert status.text == ""
        driver.execute_script(
            "const one = document.createElement('script'); one.textContent = 'window.ran = 1';document.body.append(one)"
        )
        assert driver.execute_script("return window.ran") is None
        (complaint,) = driver.get_log("browser")
        assert "Content Security Policy" in complaint["message"]


def sorted_by(texts: list[str], *, reverse: bool) -> bool:
    """Whether sizes are in order, which as texts they are not."""
    powers = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}
    values = [float(number) * powers[unit] for number, unit in (text.split() for text in texts)]
    return values == sorted(values, reverse=reverse)


def test_page_script_is_the_published_one() -> None:
    folder = resources.files("analysis") / "templates/sortable"
    origin = json.loads((folder / "origin.json").read_text())
    assert hashlib.sha256((folder / "sortable.min.js").read_bytes()).hexdigest() == origin["sha256"]
    assert "released into the public domain" in (folder / "LICENSE.txt").read_text()


def test_index_links_all_reports(spark: SparkSession, tmp_path: Path, browse: Browse) -> None:
    write(tmp_path / "in", [record(n, n * 10, produce_bytes=MB, requests=5) for n in range(1, 20)])
    asked = Asked(str(tmp_path / "in"), str(tmp_path / "out"), 60, {"target": 0.99}, T0_MS + 30 * DAY_MS, quiet=True)
    (tmp_path / "out").mkdir()
    (tmp_path / "out/noisy").touch()
    printed, failed = make_all(spark, ["usage", "slo", "chargeback", "noisy"], asked)
    assert list(failed) == ["chargeback", "noisy"]  # the first lacks a required option
    assert re.search("java.+Exception.+noisy", failed["noisy"])
    assert "1 client produced 19 MB" in printed
    with browse(1300) as driver:
        driver.get((tmp_path / "out/index.html").as_uri())
        accessible(driver)
        short, _, text = driver.find_element("tag name", "main").text.partition("\nUsage\n")
        assert short.partition("In short\n")[2].startswith("0 of 1 team missed the target: ")
        assert text.index("1 client produced 19 MB") < text.index("0 of 1 team missed the target")
        assert text.index("Not made") > text.index("0 of 1 team")
        driver.find_element("link text", "Service level").click()
        assert driver.current_url == (tmp_path / "out/slo/report.html").as_uri()
        accessible(driver)
        driver.find_element("link text", "usage").click()
        driver.find_element("link text", "All reports").click()
        assert driver.current_url == (tmp_path / "out/index.html").as_uri()
