"""The raw client of the wire tests, against brokers of both versions and against a peer that stops reading."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest

from deploy.kafka import KafkaCluster
from tests.support.clients import check_record, record
from tests.support.precedence import precedence
from tests.support.raw_client import (
    ClosedByPeerError,
    RawClient,
    decode,
    fetch_message,
    fetched_values,
    produce_message,
)


@pytest.mark.parametrize("version", range(3, 14))
def test_produce_at_every_version_and_fetch_it_back(version: int, kafka: KafkaCluster, topic: str) -> None:
    with RawClient(kafka.bootstrap[0], "raw-test") as client:
        known = client.topic(topic)
        answer = client.ask(produce_message(version, known, [record(n, 1_000) for n in range(3)]))
        assert answer.message.responses[0].partition_responses[0].error_code == 0
        assert answer.message.throttle_time_ms == 0
        assert answer.asked_at <= answer.first_byte_at <= answer.last_byte_at
        answer = client.ask(fetch_message(version + 1, known))  # 4 to 14
        assert [check_record(value) for value in fetched_values(answer.message)] == [0, 1, 2]


@pytest.mark.parametrize("version", [7, 12, 13, 17])
def test_fetch_sessions(version: int, kafka_391: KafkaCluster, topic: str) -> None:
    with RawClient(kafka_391.bootstrap[0]) as client:
        known = client.topic(topic)
        produced = client.ask(produce_message(9, known, [record(0, 100)])).message
        assert produced.responses[0].partition_responses[0].error_code == 0
        full = client.ask(fetch_message(version, known, session=(0, 0))).message
        assert full.session_id > 0
        assert len(fetched_values(full)) == 1
        # Nothing new: the session knows its partition, although the last request names none, and leaves it out.
        client.ask(fetch_message(version, known, offset=1, session=(full.session_id, 1), max_wait_ms=1))
        idle = client.ask(fetch_message(version, None, session=(full.session_id, 2), max_wait_ms=1)).message
        assert (idle.error_code, idle.session_id, idle.responses) == (0, full.session_id, [])


def test_pipelined_requests_are_answered_in_order(kafka: KafkaCluster, topic: str) -> None:
    with RawClient(kafka.bootstrap[0]) as client:
        known = client.topic(topic)
        requests = [produce_message(9, known, [record(n, 100)]) for n in range(5)]
        first = client.last_correlation_id + 1
        client.send(b"".join(client.frame(request) for request in requests))
        answers = [client.read_frame() for _ in requests]
        assert [answer.correlation_id for answer in answers] == list(range(first, first + 5))
        offsets = [
            decode(request, answer.payload).responses[0].partition_responses[0].base_offset
            for request, answer in zip(requests, answers, strict=True)
        ]
        assert offsets == [0, 1, 2, 3, 4]
        # acks=0: Kafka answers nothing, and the connection goes on.
        client.send(client.frame(produce_message(9, known, [record(5, 100)], acks=0)))
        assert client.is_silent(0.2)
        last = client.ask(produce_message(9, known, [record(6, 100)]))
        assert last.message.responses[0].partition_responses[0].base_offset == 6


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def test_a_stall_of_the_reader_is_seen(listener: socket.socket) -> None:
    # 32 MiB are more than the buffers of both kernels hold together (here 4 to 6 MB at most on the reading side).
    data = bytes(32 << 20)
    pause: list[float] = []

    def read_late() -> None:
        peer, _ = listener.accept()
        with peer:
            peer.recv(1)
            pause.append(time.monotonic())
            time.sleep(0.5)
            pause.append(time.monotonic())
            left = len(data) - 1
            while left:
                left -= len(peer.recv(1 << 20))

    reader = threading.Thread(target=read_late)
    with precedence(), RawClient(listener.getsockname(), send_buffer_bytes=64 * 1024) as client:
        reader.start()
        push = client.push(data)
    reader.join()
    assert push.points[-1][1] == len(data)
    ((began, ended),) = push.stalls(0.25)
    assert pause[0] - 0.05 < began
    assert ended == pytest.approx(pause[1], abs=0.1)


def test_a_frame_cut_off_and_silence(listener: socket.socket) -> None:
    with RawClient(listener.getsockname()) as client:
        peer, _ = listener.accept()
        with peer:
            assert client.is_silent(0.05)
            with pytest.raises(TimeoutError):
                client.read_frame(timeout_s=0.05)
            peer.sendall(struct.pack(">ii", 4, 7))
            assert not client.is_silent(5)
            assert client.read_frame().correlation_id == 7
            peer.sendall(struct.pack(">i", 100) + b"half")
        with pytest.raises(ClosedByPeerError) as caught:
            client.read_frame()
        assert caught.value.received == b"half"
