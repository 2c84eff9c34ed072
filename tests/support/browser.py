"""A real browser for pages that people look at, in any width and light, and what axe-core says of them."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.programs import program

FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
)  # fmt: skip
COLOURS: Final = 128


Browse = Callable[..., AbstractContextManager[Any]]
"""browse(width, dark=...) -> a window, as `browser` gives it."""


@contextmanager
def browser(width: int) -> Iterator[Any]:
    with chromium() as driver, window(driver, width):
        yield driver


@pytest.fixture(scope="session")
def browse() -> Iterator[Browse]:
    """Windows in one browser, one after the other: its start takes longer than most of what is looked at in it."""
    with chromium() as driver:
        yield partial(window, driver)


@contextmanager
def chromium() -> Iterator[Any]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    binary, driver_program = program("chromium", "chromium"), program("chromedriver", "chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in FLAGS:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(driver_program))
    try:
        yield driver
    finally:
        driver.quit()


@contextmanager
def window(driver: Any, width: int = 1300, *, dark: bool = False) -> Iterator[Any]:
    """The driver's window in this width and light; it is empty again after the block, and so is the browser's log."""
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    resize(driver, width, 1000)
    try:
        yield driver
    finally:
        driver.get("about:blank")
        driver.get_log("browser")


def resize(driver: Any, width: int, height: int) -> None:
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def save_picture(driver: Any, picture: Path) -> None:
    from PIL import Image

    with Image.open(io.BytesIO(driver.get_screenshot_as_png())) as taken:
        taken.convert("RGB").quantize(COLOURS).save(picture, optimize=True)


def text(driver: Any, selector: str) -> str:
    return str(driver.execute_script("return document.querySelector(arguments[0]).innerText", selector))


def accessible(driver: Any) -> None:
    """axe-core finds nothing: names for screen readers, contrast, landmarks, tables, what scrolls by keyboard."""
    from axe_core_python.selenium import Axe  # type: ignore[import-untyped]

    found = Axe().run(driver)["violations"]
    assert [(one["id"], [node["html"][:200] for node in one["nodes"]]) for one in found] == []
