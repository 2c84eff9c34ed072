"""The admin port of a running sidecar and hosts that are not its own: probes, commands, pages in a browser."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.corpus.job import wait_for
from tests.lab.kafka import KafkaCluster
from tests.support.browser import chromium, text
from tests.support.sidecars import Sidecar, sidecar
from tests.support.web_server import web_server


@pytest.fixture(scope="module")
def running(kafka: KafkaCluster) -> Iterator[Sidecar]:
    quotas = [{"client-id": "<default>", "producer_byte_rate": 20_000}]
    with sidecar(kafka.bootstrap, quotas) as one:
        yield one


PAGE = b"""<!doctype html><title>other</title><script>
const admin = new URLSearchParams(location.search).get("admin");
const said = {};
const tries = {
  cors: () => fetch(admin + "/quotas").then((a) => a.text()),
  opaque: () => fetch(admin + "/quotas", {mode: "no-cors"}).then((a) => a.text())
    .then((t) => t || Promise.reject("opaque")),
  preflight: () => fetch(admin + "/quotas", {headers: {"x-more": "1"}}).then((a) => a.text()),
  post: () => fetch(admin + "/quotas", {method: "POST", body: "x"}).then((a) => a.text()),
  xhr: () => new Promise((yes, no) => { const x = new XMLHttpRequest(); x.open("GET", admin + "/connections");
    x.onload = () => yes(x.responseText); x.onerror = () => no("error"); x.send(); }),
  script: () => new Promise((yes, no) => { const s = document.createElement("script"); s.src = admin + "/ui/app.js";
    s.onload = () => yes("ran"); s.onerror = () => no("error"); document.head.append(s); }),
  style: () => new Promise((yes, no) => { const s = document.createElement("link"); s.rel = "stylesheet";
    s.href = admin + "/ui/app.css"; s.onload = () => yes("applied"); s.onerror = () => no("error");
    document.head.append(s); }),
  frame: () => new Promise((yes, no) => { const f = document.createElement("iframe"); f.src = admin + "/ui/";
    f.onload = () => { try { f.contentWindow.document.title; yes("same origin?"); } catch { no("cross-origin"); } };
    document.documentElement.append(f); }),
};
Promise.all(Object.entries(tries).map(async ([name, attempt]) => {
  try { said[name] = "READ: " + await attempt(); } catch (error) { said[name] = "refused: " + error; }
})).then(() => { document.title = "done"; document.documentElement.dataset.said = JSON.stringify(said); });
</script><a id="link">to the sidecar</a><script>document.getElementById("link").href = admin + "/ui/";</script>"""


REBOUND = "--host-resolver-rules=MAP *.example 127.0.0.1"
"""Names of others lead to this machine, as after a rebinding."""


@pytest.mark.parametrize("page", ["127.0.0.1", "other.example"], ids=["same site", "another site"])
def test_page_of_other_origin_reads_nothing(running: Sidecar, page: str) -> None:
    from selenium.webdriver.common.by import By

    html = "text/html; charset=utf-8"
    with web_server(lambda path: (200, PAGE), content_type=html) as port, chromium(REBOUND) as driver:
        driver.get(f"http://{page}:{port}/?admin={running.admin}")
        wait_for("all attempts", lambda: driver.title == "done")
        said = json.loads(driver.execute_script("return document.documentElement.dataset.said"))
        assert len(said) == 8
        assert {name: answer for name, answer in said.items() if not answer.startswith("refused")} == {}
        # To follow a link is the person's own doing, and works.
        driver.find_element(By.ID, "link").click()
        wait_for("the page", lambda: driver.title == "kquota")
        wait_for("the status", lambda: text(driver, "#status").startswith("ready"))
