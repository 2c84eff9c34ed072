"""Pictures of the page on the admin port, of a real sidecar in use: `python docs/_site/picture_page.py` (a minute).

In light at 1300 pixels, after some time of traffic by three real clients, of which two are throttled. The folder of the
configuration is shown as that of a container's, not as the temporary one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import httpx
import yaml

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.lab.kafka import KafkaCluster  # noqa: E402
from tests.lab.kafka.ports import free_ports  # noqa: E402
from tests.support.browser import browser, resize, save_picture, text  # noqa: E402
from tests.support.waiting import until  # noqa: E402

IMAGES: Final = ROOT / "docs" / "images"
PICTURE: Final = "ui-light.png"
WIDTH: Final = 1300
NAMES: Final = {"KQUOTA_CLUSTER_ID": "prod", "KQUOTA_POD_NAMESPACE": "shop", "KQUOTA_POD_NAME": "orders-0"}
TRAFFIC_S: Final = 150.0
RENAME: Final = """
const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (texts.nextNode()) texts.currentNode.data = texts.currentNode.data.replaceAll(arguments[0], "/etc/kquota");
"""
QUOTAS: Final = (
    {"client-id": "etl", "producer_byte_rate": "50k"},
    {"client-id": "metrics-shipper", "producer_byte_rate": "80k"},
    {"client-id": "checkout", "producer_byte_rate": "2M"},
    {"client-id": "<default>", "producer_byte_rate": "1M", "consumer_byte_rate": "4M"},
)
SMALL: Final = {"batch.size": 16_384, "queue.buffering.max.messages": 100, "linger.ms": 5}
LOADS: Final = (("etl", 5000, 0.0), ("checkout", 5000, 0.06))


@contextmanager
def traffic(bootstrap: str) -> Iterator[None]:
    """Two clients by kafka-python and one by librdkafka, until the end."""
    from confluent_kafka import Producer
    from kafka import KafkaProducer
    from kafka.errors import KafkaError

    stop = threading.Event()

    def python_client(name: str, size: int, pause_s: float) -> None:
        producer = KafkaProducer(bootstrap_servers=bootstrap, client_id=name, max_block_ms=120_000)
        with suppress(KafkaError):  # the sidecar may have ended
            while not stop.is_set():
                producer.send("orders", b"x" * size).get(60)
                stop.wait(pause_s)

    def librdkafka() -> None:
        producer = Producer({"bootstrap.servers": bootstrap, "client.id": "metrics-shipper", "log_level": 0, **SMALL})
        while not stop.is_set():
            with suppress(BufferError):
                producer.produce("metrics", b"x" * 2000)
            producer.poll(0)
            stop.wait(0.01)

    threads = [threading.Thread(target=python_client, args=load, daemon=True) for load in LOADS]
    threads.append(threading.Thread(target=librdkafka, daemon=True))
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def main() -> None:
    """Start everything, look at it, and store what is seen."""
    port, admin, first = free_ports(3)
    config = {
        "listen": {"host": "127.0.0.1", "port": port, "broker_ports": f"{first}-{first + 10}"},
        "admin": {"host": "127.0.0.1", "port": admin},
        "mode": "rewrite",
        "identity": {"sources": ["static"], "static": "shop"},
        "quotas": list(QUOTAS),
    }
    with KafkaCluster.start(1, progress=print) as kafka, TemporaryDirectory() as folder:
        config["upstream"] = {"bootstrap": list(kafka.bootstrap)}
        Path(folder, "kquota.yaml").write_text(yaml.safe_dump(config))
        command = [Path(sys.executable).with_name("kquota"), "run", "--config", "kquota.yaml"]
        quiet = {"stderr": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
        with subprocess.Popen(command, cwd=folder, env=os.environ | NAMES, **quiet) as process:
            try:
                until(lambda: ready(f"http://127.0.0.1:{admin}/readyz", process), "the sidecar")
                with traffic(f"127.0.0.1:{port}"):
                    time.sleep(TRAFFIC_S)
                    shoot(f"http://127.0.0.1:{admin}/ui/", IMAGES / PICTURE, folder)
                    print(f"docs/images/{PICTURE}")
            finally:
                process.terminate()


def ready(url: str, process: subprocess.Popen[bytes]) -> bool:
    """Whether it takes connections; it must not have ended."""
    assert process.poll() is None, "the sidecar has ended: see `kquota check`"
    with suppress(httpx.TransportError):
        return httpx.get(url).status_code == 200
    return False


def shoot(url: str, picture: Path, folder: str) -> None:
    """The whole page with an explanation on it."""
    from selenium.webdriver.common.by import By

    with browser(WIDTH) as driver:
        driver.get(url)
        until(lambda: "etl" in text(driver, "#held"), "the throttled client")
        until(lambda: "etl" in text(driver, "#counter"), "history")
        driver.find_element(By.NAME, "client_id").send_keys("etl\n")
        until(lambda: "THROTTLED" in text(driver, "#explanation"), "the explanation")
        until(lambda: "rdkafka" in text(driver, "#libraries"), "libraries")
        driver.execute_script("document.activeElement.blur(); scrollTo(0, 0)")
        height = driver.execute_script("return document.documentElement.scrollHeight")
        resize(driver, WIDTH, height)
        time.sleep(1.0)  # the charts take their new width
        until(lambda: "etl" in text(driver, "#held"), "a throttled client")
        driver.execute_script(RENAME, folder)
        save_picture(driver, picture)


if __name__ == "__main__":
    main()
