"""How much of kquota a Produce request and its response run through, read from the interpreted build."""

import os
import subprocess
import sys

MOST = 14
TRACE = """
import math, sys, threading, trio
from collections import Counter
from proxy.core.telemetry import long_turns
long_turns.LONG_S = math.inf  # on a busy machine a traced turn is long, which is no part of a request
from tests.support import scripted_broker
from tests.support.session_tools import produce

crossed = [set() for _ in range(6)]
def note(frame, event, _):
    name, caller, files = frame.f_code.co_filename, frame, watching
    if files is not None and event == "call" and ("/proxy/" in name or "/quota/" in name):
        while caller is not None and not caller.f_code.co_filename.endswith("/proxy/net/io/loop.py"):
            caller = caller.f_back
        if caller is not None:
            files.add(name)
watching = None
threading.setprofile(note)
sys.setprofile(note)

async def main():
    global watching
    async with scripted_broker.through(scripted_broker.answer, quota=1e9) as (proxy, _, _):
        client = await scripted_broker.connect(proxy)
        requests = [produce(number, 1000) for number in range(6)]
        for watching, request in zip(crossed, requests):
            await client.send_all(request)
            await scripted_broker.read_frame(client)
            await trio.sleep(0.1)
        watching = None

trio.run(main)
counts = Counter(name for files in crossed for name in files)
print(*sorted(name for name, count in counts.items() if count >= 3), sep="\\n")
"""


def test_a_produce_crosses_few_files() -> None:
    """All that the event loop calls for half of six requests: a sweep may add a file to one or two."""
    done = subprocess.run(
        [sys.executable, "-c", TRACE], capture_output=True, text=True, timeout=60, env=os.environ | {"KQUOTA_PURE": "1"}
    )
    assert done.returncode == 0, done.stderr
    files = {name for name in done.stdout.splitlines() if name.endswith(".py")}
    assert any(name.endswith("session/request_handler.py") for name in files), done.stdout
    assert len(files) <= MOST, done.stdout
