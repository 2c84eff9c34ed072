"""A real browser for pages that people look at, in any width and light, and what axe-core says of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.programs import program

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)


@contextmanager
def browser(width: int = 1300, *, dark: bool = False) -> Iterator[Any]:
    """Headless Chromium; where it is missing the test is skipped, in CI it fails."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    chromium, driver_program = program("chromium", "chromium"), program("chromedriver", "chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in FLAGS:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(driver_program))
    try:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        metrics = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        yield driver
    finally:
        driver.quit()


def text(driver: Any, selector: str) -> str:
    """What is seen of the first element that the selector finds."""
    return str(driver.execute_script("return document.querySelector(arguments[0]).innerText", selector))


def accessible(driver: Any) -> None:
    """axe-core finds nothing: names for screen readers, contrast, landmarks, tables, what scrolls by keyboard."""
    from axe_core_python.selenium import Axe  # type: ignore[import-untyped]

    found = Axe().run(driver)["violations"]
    assert [(one["id"], [node["html"][:200] for node in one["nodes"]]) for one in found] == []
