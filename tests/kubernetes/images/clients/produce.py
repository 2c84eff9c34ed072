"""An application: numbered records to one topic, until it has sent enough or gets SIGTERM."""

import argparse
import functools
import json
import signal
import socket
import sys
import time

from confluent_kafka import Producer

parser = argparse.ArgumentParser()
parser.add_argument("--bootstrap", default="127.0.0.1:9092")
parser.add_argument("--topic", required=True)
parser.add_argument("--client-id", default="orders")
parser.add_argument("--records", type=int, default=10**9)
parser.add_argument("--record-bytes", type=int, default=1000)
parser.add_argument("--records-per-s", type=float, default=1e9)
parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
options = parser.parse_args()

HOST = socket.gethostname()
stopping = False
acknowledged = failed = 0
waiting: set[int] = set()


def stop(_number: int, _frame: object) -> None:
    global stopping
    stopping = True


def report(number: int, error: object, _message: object) -> None:
    global acknowledged, failed
    waiting.discard(number)
    if error is None:
        acknowledged += 1
    else:
        failed += 1
        say("failed", number=number, error=str(error))


def say(what: str, **more: object) -> None:
    print(
        json.dumps({"what": what, "at": time.time(), "acknowledged": acknowledged, "failed": failed, **more}),
        flush=True,
    )


signal.signal(signal.SIGTERM, stop)
settings = {
    "bootstrap.servers": options.bootstrap,
    "client.id": options.client_id,
    "enable.idempotence": True,
    "linger.ms": 5,
    "queue.buffering.max.messages": 2000,
    "message.timeout.ms": 120000,
    "socket.timeout.ms": 60000,
}
settings |= dict(one.split("=", 1) for one in options.set)
producer = Producer(settings)
say("started")
began = said = time.monotonic()
sent = 0
while sent < options.records and not stopping:
    if sent >= (time.monotonic() - began) * options.records_per_s:
        producer.poll(0.02)
        continue
    value = f"{HOST} {sent} ".encode().ljust(options.record_bytes, b".")
    try:
        waiting.add(sent)
        producer.produce(options.topic, value, on_delivery=functools.partial(report, sent))
        sent += 1
    except BufferError:
        waiting.discard(sent)
        producer.poll(0.05)
    producer.poll(0)
    if time.monotonic() - said >= 1:
        said = time.monotonic()
        say("progress", sent=sent)
say("ending", sent=sent)
left = producer.flush(100)
say("done", sent=sent, unanswered=left, seconds=time.monotonic() - began)
sys.exit(0 if not left and not failed else 1)
