"""The thread that delivers usage records: what happens when its sink is slow, dead, or dies half-way."""

import threading
import time

import pytest

from config.load import load_bytes
from proxy.app.export import exporter
from proxy.app.export.worker import Batch, Worker
from quota.ledger import Ledger
from quota.table import QuotaTable
from tests.support.waiting import until

LIMIT_S = 20.0


@pytest.fixture(autouse=True)
def retried_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.app.export.worker.FIRST_RETRY_S", 0.01)


class Sink:
    """It fails `failures` times, after the first `partly` lines."""

    def __init__(self, failures: int = 0, partly: int = 0) -> None:
        self.failures, self.partly = failures, partly
        self.written: list[bytes] = []
        self.go = threading.Event()
        self.go.set()
        self.closed = False
        self.ticks = 0

    def write(self, batch: Batch) -> None:
        assert self.go.wait(LIMIT_S)
        if self.failures:
            self.failures -= 1
            self.written += batch.lines[: self.partly]
            batch.lines = batch.lines[self.partly :]
            raise OSError("no room")
        self.written += batch.lines

    def tick(self) -> None:
        self.ticks += 1

    def close(self) -> None:
        self.closed = True


def batch(*lines: bytes) -> Batch:
    return Batch(list(lines), 1, 10_000, "date=2026-01-01/hour=00")


def started(sink: Sink, max_bytes: int = 1000) -> Worker:
    worker = Worker("w", sink, max_bytes)
    worker.start()
    return worker


def ended(worker: Worker, within_s: float = LIMIT_S) -> None:
    worker.end(within_s)
    assert worker.done.wait(LIMIT_S)


def test_batches_are_written_in_order_and_tried_again() -> None:
    sink = Sink(failures=2, partly=1)
    began_s = time.time()
    worker = started(sink)
    until(lambda: sink.ticks > 0)
    worker.offer(batch(b"1\n", b"2\n", b"3\n"))
    worker.offer(batch(b"4\n"))
    until(lambda: worker.records == 4)
    ended(worker)
    assert sink.written == [b"1\n", b"2\n", b"3\n", b"4\n"]
    assert sink.closed
    assert (worker.errors, worker.dropped, worker.pending_bytes) == (2, 0, 0)
    assert began_s <= worker.last_success_s <= time.time()
    assert worker.lag_s == 0.0


def test_a_full_buffer_drops_the_oldest_and_counts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = Sink()
    sink.go.clear()
    worker = started(sink, 6)
    worker.offer(batch(b"1\n"))
    until(lambda: worker.pending_bytes == 2 and not worker._waiting)  # in the sink's hands
    for number in (b"2\n", b"3\n", b"4\n", b"5\n", b"6\n"):  # offering never waits, or the sink would fail
        worker.offer(batch(number))
    assert (worker.dropped, worker.pending_bytes) == (2, 8)
    with monkeypatch.context() as patched:
        patched.setattr(time, "time", lambda: 25.0)
        assert worker.lag_s == 15.0
    sink.go.set()
    ended(worker)
    assert sink.written == [b"1\n", b"4\n", b"5\n", b"6\n"]
    assert worker.records == 4


def test_undelivered_batches_are_dropped_and_counted() -> None:
    sink = Sink(failures=10**9)
    worker = started(sink)
    worker.offer(batch(b"1\n", b"2\n"))
    worker.offer(batch(b"3\n"))
    ended(worker, 0.2)
    assert sink.closed
    assert (worker.dropped, worker.pending_bytes) == (3, 0)
    assert worker.errors > 1, "it was tried again while there was time"


def test_a_bug_in_a_sink_ends_the_export_alone() -> None:
    class Broken(Sink):
        def write(self, batch: Batch) -> None:
            raise ZeroDivisionError

    worker = started(Broken())
    worker.offer(batch(b"1\n"))
    assert worker.done.wait(LIMIT_S)
    assert (worker.dropped, worker.errors) == (1, 1)
    for _ in range(1000):
        worker.offer(batch(b"x" * 100))
    assert worker.pending_bytes <= 1000


async def test_kafka_python_gets_ipv6_addresses_in_brackets(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(exporter, "TopicSink", lambda topic, instance, bootstrap, security: asked.append(bootstrap))
    config = load_bytes("k.yaml", b'{upstream: {bootstrap: ["[::1]:9093", "k:9094"]}, export: {kafka_topic: t}}')
    exporter.new_exporter(config, Ledger(QuotaTable()), "1")
    assert asked == [["[::1]:9093", "k:9094"]]  # without brackets the port would be part of the address
