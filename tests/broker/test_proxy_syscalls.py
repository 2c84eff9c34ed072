"""System calls of the real sidecar for each small request, counted by strace in front of a real broker."""

import re
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.lab.kafka import KafkaCluster
from tests.support.precedence import precedence
from tests.support.programs import program
from tests.support.raw_client import RawClient, produce_message
from tests.support.sidecars import sidecar

REQUESTS = 300
CALL = re.compile(r"^(\d+) +(?:<\.\.\. )?(\w+)(?:\(| resumed>)")


def calls(trace: Path, begin: int) -> Counter[str]:
    """System calls by name in what strace wrote from a position on; of calls in two parts only the first counts."""
    found: Counter[str] = Counter()
    with trace.open() as lines:
        lines.seek(begin)
        for line in lines:
            match = CALL.match(line)
            if match is not None and "resumed>" not in line:
                found[match[2]] += 1
    return found


def test_small_request_takes_few_system_calls(kafka: KafkaCluster, topic: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    quotas = [{"client-id": "<default>", "producer_byte_rate": 10**12, "consumer_byte_rate": 10**12}]
    # -D: strace stands next to, and the process that we started and will signal is the sidecar itself
    strace = [program("strace", "strace"), "-D", "-f", "-o", str(trace)]
    probe = subprocess.run([*strace, "true"], capture_output=True, text=True)
    if probe.returncode or not trace.stat().st_size:
        pytest.skip(f"processes cannot be traced here: {probe.stderr.strip()}")
    with (
        sidecar(kafka.bootstrap, quotas, before=strace, log={"level": "info", "format": "json"}) as proxy,
        RawClient(("127.0.0.1", proxy.port)) as client,
    ):
        frame = client.frame(produce_message(9, client.topic(topic), [b"x" * 100]))
        client.send(frame)
        client.read_frame(30)
        tracer = re.search(r"^TracerPid:\s+(\d+)", Path(f"/proc/{proxy.pid}/status").read_text(), re.MULTILINE)
        assert tracer is not None
        # What the sidecar does by the second counts as well: the requests have to be done soon.
        with precedence(proxy.pid, int(tracer[1]), *(node.pid for node in kafka.nodes)):
            time.sleep(1)  # strace writes what it has seen
            begin = trace.stat().st_size
            for _ in range(REQUESTS):
                client.send(frame)
                client.read_frame(30)
            time.sleep(1)
        found = calls(trace, begin)
    # Two reads, two writes and two waits are the least; 6.5 in all when this was written. Polls of files, /readyz and
    # housekeeping come by the second and not by the request.
    assert found.total() / REQUESTS <= 10, found.most_common()
