"""The benchmark's set-ups: a core for the proxy alone, and a peer that only answers with a client that throws away."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks.report import elsewhere
from benchmarks.rig import affinity, answerer, drain, rawclient, runner, variants
from benchmarks.suites import control, scenarios
from benchmarks.suites.plan import FULL, TINY
from deploy.kafka.ports import free_ports
from proxy.wire import responses

# ---- who may use which core ----------------------------------------

THREADED = """
import sys, threading
stop = threading.Event()
for _ in range(3):
    threading.Thread(target=stop.wait).start()
print("there", flush=True)
for line in sys.stdin:
    late = threading.Thread(target=stop.wait)
    late.start()
    print(late.native_id, flush=True)
stop.set()
"""


@contextmanager
def threaded() -> Iterator[subprocess.Popen[str]]:
    """A process of four threads, which starts one more for each line and says its id."""
    with subprocess.Popen(
        [sys.executable, "-c", THREADED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        yield process
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(20) == 0


def one_more(process: subprocess.Popen[str]) -> int:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return int(process.stdout.readline())


def cores_of(pid: int) -> set[frozenset[int]]:
    return {frozenset(os.sched_getaffinity(thread)) for thread in affinity.threads(pid)}


def test_all_threads_are_kept_apart_and_let_free_again() -> None:
    everything = frozenset(os.sched_getaffinity(0))
    if len(everything) < 2:
        with pytest.raises(ValueError, match="there is one"):
            affinity.Cores.split()
        assert affinity.missing() is not None
        return
    assert affinity.missing() is None
    last = frozenset({max(everything)})
    with threaded() as broker, threaded() as proxy:
        with affinity.apart((os.getpid(), broker.pid), proxy.pid) as cores:
            assert (cores.ends, cores.proxy) == (everything - last, last)
            assert cores_of(broker.pid) == {everything - last}
            assert cores_of(proxy.pid) == {last}
            assert len(affinity.threads(proxy.pid)) == 4
            # What is started from now on belongs to its maker's side: threads, and the tools that this process runs.
            assert os.sched_getaffinity(one_more(proxy)) == last
            told = subprocess.run(
                [sys.executable, "-c", "import os; print(sorted(os.sched_getaffinity(0)))"],
                capture_output=True,
                text=True,
                check=True,
            )
            assert json.loads(told.stdout) == sorted(everything - last)
        assert cores_of(broker.pid) == cores_of(proxy.pid) == {everything}
    assert frozenset(os.sched_getaffinity(0)) == everything


def test_all_are_let_free_when_the_measurement_fails_or_a_process_has_ended() -> None:
    everything = os.sched_getaffinity(0)
    if len(everything) < 2:
        return
    with threaded() as broker:
        pass
    with pytest.raises(ProcessLookupError, match=str(broker.pid)), affinity.apart((os.getpid(), broker.pid), None):
        pytest.fail("the broker has ended")
    assert os.sched_getaffinity(0) == everything


def test_on_one_core_the_scenarios_are_left_out_and_the_others_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {3})
    said: list[str] = []
    skipped: dict[str, str] = {}
    known = scenarios.scenarios(FULL)
    left = runner.possible(known, skipped, said.append)
    apart = {"produce-apart", "produce-default-apart", "fetch-apart"}
    assert skipped.keys() == apart
    assert "there is one" in skipped["fetch-apart"]
    assert {scenario.key for scenario in known} - {scenario.key for scenario in left} == apart
    assert [line for line in said if line.startswith("fetch-apart is left out: the proxy cannot have a core")]


def test_without_the_right_to_it_the_scenarios_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(_pid: int, _cores: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    monkeypatch.setattr(os, "sched_setaffinity", forbidden)
    assert "Operation not permitted" in str(affinity.missing())


# ---- frames of the peer that only answers ----------------------------------------


def test_the_fetch_request_is_what_a_typed_decoder_reads() -> None:
    from kio.schema.fetch.v15.request import FetchRequest
    from kio.serial import entity_reader

    frame = bytes(answerer.fetch_request())
    size, key, version, correlation_id, length = struct.unpack_from(">ihhih", frame)
    assert (size, key, version, correlation_id) == (len(frame) - 4, 1, 15, 0)
    body = frame[14 + length + 1 :]
    request, used = entity_reader(FetchRequest)(body, 0)
    assert used == len(body)
    (topic,) = request.topics
    (partition,) = topic.partitions
    assert partition.partition_max_bytes == 1_048_576
    assert (request.session_id, request.session_epoch) == (0, -1)


def test_the_fetch_response_is_what_a_typed_decoder_and_kquota_read() -> None:
    from kio.schema.fetch.v15.response import FetchResponse
    from kio.serial import entity_reader

    frame = answerer.fetch_response(100_000)
    size, correlation_id, tags = struct.unpack_from(">iib", frame)
    assert (size, correlation_id, tags) == (len(frame) - 4, 0, 0)
    response, used = entity_reader(FetchResponse)(frame[9:], 0)
    assert used == len(frame) - 9
    (topic,) = response.responses
    (partition,) = topic.partitions
    assert 100_000 <= len(partition.records) < 102_000
    assert partition.records[:8] == bytes(8)
    assert responses.read_throttle(frame, 0, len(frame), 1, 15) == 0
    throttled = bytearray(frame)
    responses.patch_throttle(throttled, 0, len(throttled), 1, 15, 7)
    assert struct.unpack_from(">i", throttled, answerer.THROTTLE_AT) == (7,)


# ---- the peer and the client ----------------------------------------


@contextmanager
def answering(tmp_path: Path, records_bytes: int) -> Iterator[variants.Running]:
    peer = variants.start(
        variants.answerer(records_bytes), variants.Ports(*free_ports(1), 0, 0), ("", 0), tmp_path / "peer"
    )
    try:
        yield peer
    finally:
        peer.stop()


def test_every_byte_of_every_response_comes(tmp_path: Path) -> None:
    expected = answerer.fetch_response(300_000)
    with answering(tmp_path, 300_000) as peer, drain.fetching(peer.address, 3, expected) as fetchers:
        first, second = drain.run(fetchers, 0.1), drain.run(fetchers, 0.0)
    assert first.responses >= 3
    assert first.moved_bytes == first.responses * len(expected)
    assert first.seconds >= 0.1
    assert (second.responses, second.moved_bytes) == (3, 3 * len(expected))  # one each, and no more


def test_another_response_than_expected_is_told(tmp_path: Path) -> None:
    expected = bytearray(answerer.fetch_response(50_000))
    expected[-1000] ^= 1
    with (
        answering(tmp_path, 50_000) as peer,
        pytest.raises(rawclient.BenchmarkRequestError, match="not the one that was sent"),
        drain.fetching(peer.address, 1, bytes(expected)),
    ):
        pytest.fail("it is another response")


@pytest.mark.parametrize(
    ("head", "what"),
    [
        (struct.pack(">iibi", 1000, 2, 0, 0), "response 2 of 1000 bytes"),
        (struct.pack(">iibi", 1000, 1, 0, 5), "throttled for 5 ms"),
        (struct.pack(">iibi", 1000, 1, 0, 0), "closed in the middle"),
        (b"", "closed before"),
    ],
    ids=["of another request", "throttled", "cut", "nothing"],
)
def test_a_wrong_response_ends_the_measurement(head: bytes, what: str) -> None:
    ours, theirs = socket.socketpair()
    with ours:
        fetcher = drain.Fetcher(ours)
        fetcher.ask()
        theirs.recv(1000)
        theirs.sendall(head)
        theirs.close()
        with pytest.raises(rawclient.BenchmarkRequestError, match=what):
            fetcher.receive()


def test_the_peer_answers_what_a_sidecar_asks_and_ends_what_it_does_not_know(tmp_path: Path) -> None:
    from proxy.wire.responses import metadata_request

    with answering(tmp_path, 1000) as peer:
        with rawclient.connected(peer.address) as connection:
            connection.sendall(metadata_request(1, 1, "test"))
            size = rawclient.exactly(connection, 4)
            frame = size + rawclient.exactly(connection, int.from_bytes(size, "big"))
            ((node),) = responses.read_brokers(1, frame, 0, len(frame))
            assert (node.host, node.port) == peer.address
        with rawclient.idle_connections(peer.address, 1):
            pass  # ApiVersions was answered
        with rawclient.connected(peer.address) as connection:
            connection.sendall(rawclient.produce_frame("topic"))
            assert connection.recv(1) == b""


# ---- the relay that looks at nothing ----------------------------------------


@contextmanager
def relaying(tmp_path: Path, upstream_port: int) -> Iterator[variants.Running]:
    assert variants.RELAY.missing() is None, "a compiler is what the compiled data path needs as well"
    ports = variants.Ports(*free_ports(1), upstream_port, 0)
    running = variants.start(variants.RELAY, ports, ("127.0.0.1", 0), tmp_path / "relay")
    try:
        yield running
    finally:
        running.stop()


def test_the_relay_passes_on_everything_also_to_who_reads_late(tmp_path: Path) -> None:
    data = os.urandom(1 << 20) * 24  # more than all sockets on the way hold
    with socket.create_server(("127.0.0.1", 0)) as server, relaying(tmp_path, server.getsockname()[1]) as relay:
        server.settimeout(20)
        server.accept()[0].close()  # the question whether it is there
        with socket.create_connection(relay.address, 20) as client:
            upstream, _ = server.accept()
            with upstream, ThreadPoolExecutor() as threads:
                upstream.settimeout(20)
                sent = [threads.submit(one.sendall, data) for one in (client, upstream)]
                time.sleep(0.2)  # both directions are full by now
                received = [threads.submit(rawclient.exactly, one, len(data)) for one in (client, upstream)]
                assert [one.result(20) == data for one in received] == [True, True]
                assert [one.result(20) for one in sent] == [None, None]
                client.shutdown(socket.SHUT_WR)
                assert upstream.recv(1) == b""
                upstream.sendall(b"late")
                upstream.close()
                assert (client.recv(10), client.recv(1)) == (b"late", b"")


def test_the_relay_ends_a_pair_and_no_other(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, relaying(tmp_path, server.getsockname()[1]) as relay:
        server.settimeout(20)
        server.accept()[0].close()
        with socket.create_connection(relay.address, 20) as stays:
            stays_upstream, _ = server.accept()
            with socket.create_connection(relay.address, 20) as client:
                upstream, _ = server.accept()
                client.sendall(b"x")
                assert upstream.recv(10) == b"x"
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            with upstream:
                upstream.settimeout(20)
                assert upstream.recv(1) == b""  # closed, however the client ended
            with stays_upstream:
                stays.sendall(b"y")
                assert stays_upstream.recv(10) == b"y"
        assert relay.process is not None
        assert relay.process.poll() is None


def test_the_relay_is_measured_where_the_proxy_has_a_core_and_nowhere_else(tmp_path: Path) -> None:
    relay = variants.Running(variants.RELAY, ("127.0.0.1", 1), None)
    covered = {scenario.key for scenario in scenarios.scenarios(FULL) if scenario.covers(relay)}
    assert covered == {"produce-apart", "produce-default-apart", "fetch-apart"}


def test_a_relay_that_cannot_be_compiled_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "relay.c"
    source.write_text("int main(void) { return nothing; }\n")
    monkeypatch.setattr(variants, "RELAY_SOURCE", source)
    with pytest.raises(variants.VariantError, match="nothing"):
        variants.start(variants.RELAY, variants.Ports(1, 2, 3), ("127.0.0.1", 0), tmp_path / "relay")
    monkeypatch.setattr(variants.shutil, "which", lambda *_: None)
    assert "apt-get install gcc" in str(variants.RELAY.missing())


# ---- results of other programs ----------------------------------------


def test_the_newest_results_of_other_programs_are_judged_with_the_file_named(tmp_path: Path) -> None:
    assert elsewhere.lines(tmp_path) == []
    for day, ratios in (("01", [1.0]), ("02", [1.0, 0.99, 1.03])):
        text = json.dumps({"figures": [{"ratio": ratio} for ratio in ratios]})
        (tmp_path / f"2026-01-{day}-accuracy.json").write_text(text)
    quiet, other, slow = control.Noticed(4.0, 2.0, 0), control.Noticed(7.0, 2.0, 3), control.Noticed(6.0, 3.0, 5)
    times = control.Times(0.0, 1.0, 2.0, 1.0)
    result = {
        "entries": 10_000,
        "starts": [asdict(control.Start(wall_s, 0.5, 58.0)) for wall_s in (0.7, 0.9, 2.0)],
        "reloads": [
            asdict(control.Reload(took_ms, 100.0, {"reload": noticed, "quiet": quiet, "elsewhere": other}, times, 0.0))
            for took_ms, noticed in ((150.0, quiet), (250.0, slow))
        ],
        "loop": [
            {"reload": asdict(noticed), "quiet": asdict(quiet)} for noticed in (quiet, control.Noticed(9.0, 3.0, 1))
        ],
    }
    (tmp_path / "2026-01-02-control.json").write_text(json.dumps(result))
    assert elsewhere.lines(tmp_path) == [
        "quota accuracy over 60 s, within 2% of the limit: 2 of 3 groups, the worst 3.0% off: **missed** "
        "(`2026-01-02-accuracy.json`)",
        "start to ready, s: 0.90 (0.70–2.00), target ≤ 1.5: met (`2026-01-02-control.json`)",
        "reload of 10,000 quota entries, ms: 200 (150–250), target ≤ 200: met (`2026-01-02-control.json`)",
        # 5 beside 0 is more than chance: 5 > 2 * sqrt(5) = 4.47
        "answers of more than 5 ms during 2 reloads: 5, the longest 6.0 ms (in as long a time before: 0; "
        "while another program computes for as long: 6), target 0: **missed** (`2026-01-02-control.json`)",
        # 1 beside 0 can be chance: 1 <= 2 * sqrt(1) = 2; an earlier result, without another program
        "turns of the event loop of more than 5 ms during 2 reloads: 1, the longest 9.0 ms "
        "(in as long a time before: 0), target 0: not told apart from the machine's own (`2026-01-02-control.json`)",
    ]


def test_the_tiny_plan_has_all_of_it() -> None:
    keys = {scenario.key for scenario in scenarios.scenarios(TINY)}
    assert {"produce-apart", "fetch-apart", "answers-1", "answers-8"} <= keys
