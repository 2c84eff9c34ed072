"""The page on the admin port in a real browser, of a real sidecar: what people see, in any light and width."""

import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.lab.kafka import KafkaCluster
from tests.lab.kafka.ports import free_ports
from tests.support.browser import Browse, accessible, text
from tests.support.forked import run_kquota
from tests.support.raw_client import RawClient, produce_message
from tests.support.sidecars import Sidecar, sidecar
from tests.support.waiting import LIMIT_S, in_background, until
from tests.support.web_server import web_server

EVIL = "<img src=x onerror=\"document.title='owned'\">"
TURNED = "abc\u202egnol\u2066\u200f\u061c\u2028\x9b\x1b\x7f"
"""A name that a browser would write from right to left, with invisible characters."""
TURNED_SHOWN = r"abc\u{202e}gnol\u{2066}\u{200f}\u{61c}\u{2028}\u{9b}\u{1b}\u{7f}"
TIMES = """
const axes = Object.values(charts).map((one) => [one, one.axes[0]]);
const found = axes.map(([one, axis]) => [axis._values, axis._splits.map((at) => one.valToPos(at, "x"))]);
return found.length === 3 ? found : null;
"""
"""The times at the axis of each chart, and where they are, in pixels."""
ROWS = """
const rows = [...document.querySelectorAll("#groups tbody tr")];
const texts = rows.map((row) => [...row.cells].map((one) => one.innerText));
return [document.getElementById("status").innerText, texts];
"""
HOVER = """
const chart = charts["chart-use"], known = chart.data[1].findLastIndex((one) => one !== null);
chart.setCursor({ left: chart.valToPos(chart.data[0][known], "x"), top: 9 });
const shown = document.querySelector("#chart-use .u-legend").innerText;
return shown.includes("--") ? null : shown;
"""
"""The values below the first chart, at its latest time."""
VALUES = r"UTC\d\d:\d\d:\d\dZrate[\d.]+ k?B/s"
CHOOSE = """
const menu = document.getElementById("counter"), wanted = [...menu.options].find((one) => one.text === arguments[0]);
menu.value = wanted.value;
menu.dispatchEvent(new Event("change"));
"""
DIMMED = "return getComputedStyle(document.querySelector('main')).opacity"
CHOSEN = "return document.getElementById('counter').selectedOptions[0]?.text"
"""Whose history is shown."""


@pytest.fixture(scope="module")
def busy(kafka: KafkaCluster) -> Iterator[Sidecar]:
    """A sidecar with a throttled client, one with an evil name and one that is idle."""
    from kafka.protocol.metadata import ApiVersionsRequest

    quotas = [
        {"client-id": "<default>", "producer_byte_rate": 20_000, "candidate": {"producer_byte_rate": 10_000}},
        {"client-id": "idle", "producer_byte_rate": "1M"},
    ]
    with sidecar(kafka.bootstrap, quotas) as running:
        stop = threading.Event()

        def work(client_id: str, size: int, pause_s: float) -> None:
            with RawClient(f"127.0.0.1:{running.port}", client_id) as client:
                if client_id == TURNED:  # brokers refuse such a library, and the connection stays open
                    library = {"client_software_name": TURNED, "client_software_version": TURNED}
                    client.exchange(client.frame(ApiVersionsRequest(version=3, **library)))
                message = produce_message(9, client.topic("ui"), [b"x" * size])
                while not stop.is_set():
                    client.ask(message, 120)
                    stop.wait(pause_s)

        loads = [("greedy", 30_000, 0.0), (EVIL, 1000, 0.5), (TURNED, 1000, 0.5), ("idle", 1000, 0.5)]
        ended = [in_background(work, *load) for load in loads]
        yield running
        stop.set()
        for each in ended:
            each.result(LIMIT_S)


def groups(driver: Any) -> list[Any]:
    return list(driver.find_elements("css selector", "#groups tbody tr"))


def test_page_shows_throttled_clients_and_reasons(busy: Sidecar, browse: Browse) -> None:
    from selenium.webdriver.common.by import By

    with browse() as driver:
        driver.get(f"{busy.admin}/ui")
        held = until(lambda: "greedy" in text(driver, "#held") and text(driver, "#held"), "a throttled client")
        assert "produce: (all) / greedy" in held
        assert " of 20 kB/s; producer_byte_rate of <default client-id>, set in the file " in held
        assert text(driver, "#status").startswith("ready · ")
        who = r"\S+ · 127\.0\.0\.1:\d+ · rewrite · [\d.]+\S* · configuration of \d{4}-\d\d-\d\d \d\d:\d\d UTC"
        assert re.fullmatch(who, text(driver, "#who"))
        since = r"greedy since \d\d:\d\dZ( or before)?, \d+ % of the last minute"
        until(lambda: re.search(since, text(driver, "#held")), "since when")
        until(lambda: "idle" in text(driver, "#groups") and "img src" in text(driver, "#groups"), "all groups")
        # Names of clients are text, whatever they say.
        assert EVIL in text(driver, "#groups")
        assert TURNED_SHOWN in text(driver, "#groups")
        until(lambda: f"{TURNED_SHOWN}/{TURNED_SHOWN}" in text(driver, "#connections"), "its connection")
        assert driver.title == "kquota"
        assert driver.find_elements(By.CSS_SELECTOR, "img") == []
        # (At one moment: the page may replace an element between two questions.)
        status, rows = driver.execute_script(ROWS)
        row = next(cells for cells in rows if "greedy" in cells[0])
        state = r"(throttled|owes [\d.]+ s)(, paced)?\nsince \d\d:\d\dZ.*, \d+ % of the last minute.*"
        assert re.fullmatch(state, row[3])
        # The header counts what the tables show.
        count = sum(cells[3].startswith(("throttled", "owes")) for cells in rows)
        assert status.endswith(f" · {count} of 4 counters throttled")
        assert re.fullmatch(r"20 kB/s\ncandidate 10 kB/s: \d+ %, would delay \d+", row[4])
        # Filter, history of the row that is picked, connections, explain.
        driver.find_element(By.ID, "filter").send_keys("IDLE")
        until(lambda: len(groups(driver)) == 1, "the filter")
        until(lambda: "idle" in text(driver, "#counter"), "history")
        groups(driver)[0].click()
        assert driver.execute_script(CHOSEN) == "produce: (all) / idle"
        # What is hovered, with its limit and the limit on trial.
        until(lambda: re.fullmatch(rf"{VALUES}limit1 MB/s", driver.execute_script(HOVER) or ""), "values")
        driver.execute_script(CHOOSE, "produce: (all) / greedy")
        shown = rf"{VALUES}limit20 kB/scandidate10 kB/s"
        until(lambda: re.fullmatch(shown, driver.execute_script(HOVER) or ""), "the limit on trial")
        driver.execute_script(CHOOSE, "produce: (all) / idle")
        driver.find_element(By.CSS_SELECTOR, "#range option[value='5']").click()
        until(lambda: "client-id idle" in text(driver, "#explanation"), "the row's explanation")
        assert f"kquota explain --admin {busy.admin} --client-id 'idle'" in text(driver, "#explanation")
        # The address alone brings another reader to the same place.
        shared = driver.current_url
        driver.get("about:blank")
        driver.get(shared)
        until(lambda: "client-id idle" in text(driver, "#explanation"), "the same explanation")
        until(lambda: len(groups(driver)) == 1, "the same rows")
        assert driver.find_element(By.ID, "range").get_attribute("value") == "5"
        until(lambda: driver.execute_script(CHOSEN) == "produce: (all) / idle", "the same history")
        assert len(driver.find_elements(By.CSS_SELECTOR, ".charts canvas")) == 3
        assert until(lambda: "greedy" in text(driver, "#connections"), "connections")
        # (A client that gets no core for a second seems to ignore its mute; some twenty others outweigh that.)
        until(lambda: re.search("unknown.*yes", text(driver, "#libraries")), "libraries", 120)
        field = driver.find_element(By.NAME, "client_id")
        field.clear()
        field.send_keys("greedy")
        driver.find_element(By.CSS_SELECTOR, "#explain button").click()
        explained = until(lambda: "greedy" in (shown := text(driver, "#explanation")) and shown, "the explanation")
        assert "THROTTLED by produce" in explained
        winner = driver.find_element(By.CSS_SELECTOR, "#explanation td.wins")
        assert winner.text == "20 kB/s (20000) in force"
        level = winner.find_element(By.XPATH, "../th")
        assert (level.text, level.get_attribute("scope")) == ("<default client-id>", "row")
        # What the sidecar itself writes for people: its text is shown as it is.
        driver.execute_script("document.getElementsByName('client_id')[0].value = arguments[0]", TURNED)
        driver.find_element(By.CSS_SELECTOR, "#explain button").click()
        shown = r'client-id "abc\u202egnol\u2066\u200f\u061c'
        until(lambda: shown in text(driver, "#explanation"), "its explanation")
        assert "\u202e" not in driver.find_element(By.TAG_NAME, "main").text
        driver.find_element(By.CSS_SELECTOR, "#lately summary").click()
        assert "Produce" in text(driver, "#decisions")
        assert [entry for entry in driver.get_log("browser") if entry["level"] != "INFO"] == []


@pytest.mark.long
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 800, 1300])
def test_ui_is_readable_in_both_themes_and_any_width(busy: Sidecar, width: int, dark: bool, browse: Browse) -> None:
    from selenium.webdriver.common.by import By

    with browse(width, dark=dark) as driver:
        driver.get(f"{busy.admin}/ui/")
        until(lambda: "greedy" in text(driver, "#groups"), "the groups")
        driver.find_element(By.NAME, "client_id").send_keys("greedy\n")
        until(lambda: "THROTTLED" in text(driver, "#explanation"), "the explanation")
        driver.find_element(By.CSS_SELECTOR, "#lately summary").click()
        until(lambda: "Produce" in text(driver, "#decisions"), "a throttle")
        wide = driver.execute_script("return [document.documentElement.scrollWidth, window.innerWidth]")
        assert wide[0] <= wide[1], "the page itself never scrolls sideways; its tables do"
        # Who, now, use and state are seen without scrolling a table sideways.
        heads = driver.find_elements(By.CSS_SELECTOR, "#groups th")
        assert [head.text for head in heads[:4]] == ["user / client-id", "now", "use", "state"]
        rights = driver.execute_script(
            "return [...document.querySelectorAll('#groups tbody tr:first-child td')].slice(0, 4)"
            ".map(cell => cell.getBoundingClientRect().right)"
        )
        assert len(rights) == 4
        assert max(rights) <= width
        times = until(lambda: driver.execute_script(TIMES), "the charts")
        for labels, places in times:
            assert all(re.fullmatch(r"[0-2]\d:[0-5]\d", label) for label in labels), labels
            # A label of five digits is 35 px wide.
            assert all(right - left >= 40 for left, right in pairwise(places)), (labels, places)
        accessible(driver)

        background = driver.execute_script("return getComputedStyle(document.querySelector('section')).backgroundColor")
        red, green, blue, *_ = map(int, re.findall(r"\d+", background))
        assert (red + green + blue < 3 * 128) is dark


@pytest.mark.long
def test_ui_works_by_keyboard(busy: Sidecar, browse: Browse) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    with browse() as driver:

        def focused() -> Any:
            return driver.switch_to.active_element

        def tab_to(what: str, selector: str) -> Any:
            for _ in range(60):
                focused().send_keys(Keys.TAB)
                if driver.execute_script("return document.activeElement.matches(arguments[0])", selector):
                    return focused()
            raise AssertionError(f"{what} ({selector}) is not reached by the Tab key")

        driver.get(f"{busy.admin}/ui/")
        until(lambda: "idle" in text(driver, "#groups"), "the groups")
        until(lambda: "idle" in text(driver, "#counter"), "history")
        tab_to("the last throttles", "#lately summary").send_keys(Keys.ENTER)
        assert driver.find_element(By.ID, "decisions").is_displayed()
        tab_to("the filter", "#filter").send_keys("idle")
        until(lambda: len(groups(driver)) == 1, "the filter")
        tab_to("a counter", "button.pick").send_keys(Keys.ENTER)
        assert driver.execute_script(CHOSEN) == "produce: (all) / idle"
        # It stays in focus while the page asks again every two seconds.
        asked = text(driver, "#at")
        until(lambda: text(driver, "#at") not in (asked, ""), "the next answers")
        assert focused().get_attribute("class") == "pick"
        tab_to("a table", "div.scroll[aria-label='Table of connections']")
        driver.find_element(By.ID, "filter").click()
        tab_to("the client-id", "input[name=client_id]").send_keys(Keys.CONTROL, "a", Keys.NULL, "greedy", Keys.ENTER)
        until(lambda: "in force" in text(driver, "#explanation"), "the explanation")


@pytest.mark.long
def test_ui_reports_unreachable_sidecar(kafka: KafkaCluster, browse: Browse) -> None:
    with browse() as driver:
        with sidecar(kafka.bootstrap, []) as running:
            driver.get(f"{running.admin}/ui")
            until(lambda: text(driver, "#status").startswith("ready"), "the status")
            assert driver.execute_script(DIMMED) == "1"
            # One that hangs is as bad, and what it said before is not what is.
            os.kill(running.pid, signal.SIGSTOP)
            try:
                until(lambda: float(driver.execute_script(DIMMED)) < 1, "the timeout", 30)
            finally:
                os.kill(running.pid, signal.SIGCONT)
            until(lambda: driver.execute_script(DIMMED) == "1", "its return")
        until(lambda: "unreachable" in text(driver, "#status"), "the end")
        assert float(driver.execute_script(DIMMED)) < 1


def test_many_sidecars_are_on_one_page(busy: Sidecar, kafka: KafkaCluster, browse: Browse, tmp_path: Path) -> None:
    """One with a throttled client, one without clients, one of another version and an address where nothing listens."""
    from selenium.webdriver.common.by import By

    log, gone = tmp_path / "log", f"http://127.0.0.1:{free_ports(1)[0]}"
    with ExitStack() as stack:
        idle = stack.enter_context(sidecar(kafka.bootstrap, []))
        snapshot = httpx.get(f"{idle.admin}/snapshot").json()
        snapshot["connections"] |= {"connections": [{"muted_for_ms": 0, "waited_ms": 0}], "total": 1}
        other = stack.enter_context(web_server(lambda _path: (200, json.dumps(snapshot).encode())))
        hosts = [url.removeprefix("http://") for url in (gone, busy.admin, idle.admin, f"127.0.0.1:{other}")]
        arguments = [word for host in hosts for word in ("--admin", host)]
        serving = run_kquota(["ui", *arguments, "--port", "0"], log)
        stack.callback(serving.kill)
        (url,) = until(lambda: re.findall(r"^4 sidecars: (\S+)", log.read_text()), "its address")
        driver = stack.enter_context(browse())
        driver.get(url)
        until(lambda: f"greedy in {hosts[1]}" in text(driver, "#held"), "who is throttled")
        rows = [line.split()[:2] for line in text(driver, "#sidecars tbody").splitlines()]
        assert rows == [[hosts[0], f"{gone}:"], [hosts[1], "ready"], *([host, "ready"] for host in sorted(hosts[2:]))]
        status, rows = driver.execute_script(ROWS)
        assert status.startswith(f"not ready: {hosts[0]} · ")
        assert f" of {len(rows)} counters" in status
        assert hosts[1] in text(driver, "#connections")
        assert f"unexpected row of {hosts[3]}: " in text(driver, "#connections")
        until(lambda: "unknown" in text(driver, "#libraries"), "libraries", 120)
        assert not driver.find_element(By.ID, "explain").is_displayed()
        accessible(driver)
        # A row leads to its sidecar's page, which explains it.
        driver.find_element(By.ID, "filter").send_keys("greedy")
        until(lambda: len(groups(driver)) == 1, "the filter")
        here = driver.current_window_handle
        groups(driver)[0].click()
        (there,) = until(lambda: set(driver.window_handles) - {here}, "a page")
        driver.switch_to.window(there)
        try:
            assert driver.current_url.startswith(f"{busy.admin}/ui/#")
            until(lambda: "client-id greedy" in text(driver, "#explanation"), "the explanation")
            until(lambda: driver.execute_script(CHOSEN) == "produce: (all) / greedy", "its history")
        finally:
            driver.close()
            driver.switch_to.window(here)


def test_ui_serves_only_its_files(busy: Sidecar) -> None:
    with httpx.Client(base_url=busy.admin, timeout=10) as client:
        page = client.get("/ui/")
        assert page.headers["content-security-policy"].startswith("default-src 'self'")
        assert client.get("/ui").headers["location"] == "ui/"
        for path in ("/ui/../admin.py", "/ui/%2e%2e%2fadmin.py", "/ui/..%2f..%2fcli.py", "/ui/nothing.js"):
            assert client.get(path).status_code == 404, path
        assert client.get("/ui/uPlot.LICENSE.txt").text.startswith("The MIT License")
