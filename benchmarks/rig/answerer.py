"""A peer that only answers: it looks like a broker to a proxy, and sends the same prepared fetch response every time.

Run as `python -m benchmarks.rig.answerer PORT RECORDS_BYTES TOPICS [PEM]`: each response has so many topics of one
partition. With a certificate and its key it speaks TLS.
Brokers send records from the page cache by sendfile, and so does this, from a file in memory: it reads nothing, copies
nothing and computes nothing, so that what is between it and a client that throws everything away can show what it
carries. It answers what such clients and a sidecar's readiness ask: ApiVersions 0 (as the only version), Metadata 1,
Fetch 15 and `produce_frame`'s requests for TOPIC; other requests end the connection.
"""

from __future__ import annotations

import datetime
import os
import select
import socket
import ssl
import struct
import sys
import uuid
from collections import deque
from typing import Final

from kio.schema.errors import ErrorCode

from benchmarks.rig.frames import PRODUCE_VERSION, fetch_frame, record_batch
from benchmarks.rig.rawclient import ANSWER_LIMIT_S
from proxy.core.wire.messages import unsupported_api_versions_response
from tests.support.session_tools import API_VERSIONS, FETCH, METADATA, PRODUCE, kio_message, metadata_response
from tests.support.wire_tools import kio_frame

FETCH_VERSION = 15
"""The version that kquota asks brokers with, whatever newer one its clients speak; brokers since 3.5 know it."""
METADATA_VERSION = 1
TOPIC = "answered"
"""Of the produce requests that are answered."""
VALUE_BYTES = 1024
TOPIC_ID = uuid.UUID(bytes=bytes(range(16)))
SESSION_ID = 1
MAX_PARTITION_BYTES, MAX_FETCH_BYTES = 1_048_576, 52_428_800
"""max.partition.fetch.bytes and fetch.max.bytes as they are by default."""
NO_TIME = datetime.timedelta()
_HEAD_BYTES = 8
"""Size and correlation id, of which the latter differs from answer to answer."""
_RECEIVE_BYTES = 65_536


# ---- frames ----------------------------------------


def fetch_request(*, in_session: bool = False) -> bytearray:
    """A whole Fetch request; its correlation id stands at bytes 8 to 11. It is for one partition and without a fetch
    session, or `in_session` and without a change of partitions."""
    session = (SESSION_ID, 1) if in_session else (0, -1)
    frame = fetch_frame(
        FETCH_VERSION, "", TOPIC_ID, MAX_FETCH_BYTES, partition_bytes=MAX_PARTITION_BYTES, session=session
    )
    return bytearray(frame)


def fetch_response(records_bytes: int, topics: int = 1) -> bytes:
    """A whole fetch response frame with correlation id 0 and at least so many bytes of records of 1 KB, shared by so
    many topics."""
    batch = record_batch(b"x" * VALUE_BYTES)
    count = -(-records_bytes // len(batch) // topics)
    # The base offset is not in a batch's checksum.
    records = b"".join(struct.pack(">q", offset) + batch[8:] for offset in range(count))
    kio = kio_message("fetch", FETCH_VERSION, "response")
    partition = kio.PartitionData(
        partition_index=0,
        error_code=ErrorCode.none,
        high_watermark=count,
        last_stable_offset=count,
        log_start_offset=0,
        aborted_transactions=None,
        records=records,
    )
    message = kio.FetchResponse(
        throttle_time=NO_TIME,
        error_code=ErrorCode.none,
        session_id=0 if topics == 1 else SESSION_ID,
        responses=topics * (kio.FetchableTopicResponse(topic_id=TOPIC_ID, partitions=(partition,)),),
    )
    return kio_frame(message, 0)


def produce_response(topics: int = 1) -> bytes:
    """A whole response frame with correlation id 0 to a Produce for partition 0 of so many topics."""
    kio = kio_message("produce", PRODUCE_VERSION, "response")
    partition = kio.PartitionProduceResponse(
        index=0, error_code=ErrorCode.none, base_offset=0, log_start_offset=0, record_errors=()
    )
    topic = kio.TopicProduceResponse(name=TOPIC, partition_responses=(partition,))
    return kio_frame(kio.ProduceResponse(responses=topics * (topic,)), 0)


def _api_versions(correlation_id: int) -> bytes:
    kio = kio_message("api_versions", 0, "response")
    apis = (
        (PRODUCE, 3, PRODUCE_VERSION),
        (FETCH, 4, FETCH_VERSION),
        (METADATA, 0, METADATA_VERSION),
        (API_VERSIONS, 0, 0),
    )
    keys = tuple(kio.ApiVersion(api_key=key, min_version=low, max_version=high) for key, low, high in apis)
    return kio_frame(kio.ApiVersionsResponse(error_code=ErrorCode.none, api_keys=keys), correlation_id)


# ---- the program ----------------------------------------


class Peer:
    """One connection."""

    __slots__ = ("_answerer", "_file_at", "_more", "_replies", "_rest", "socket")

    def __init__(self, connection: socket.socket, answerer: Answerer) -> None:
        self.socket = connection
        self._answerer: Final = answerer
        self._rest = b""
        """Of a request that has not come whole yet."""
        self._replies: deque[tuple[bytes, bool]] = deque()
        """What is still to be sent: bytes, and whether the prepared file comes behind them."""
        self._file_at = _HEAD_BYTES
        self._more: Final = 0 if isinstance(connection, ssl.SSLSocket) else socket.MSG_MORE

    def receive(self) -> bool:
        """Read all that is there; False when the connection is over."""
        while True:
            try:
                data = self.socket.recv(_RECEIVE_BYTES)
            except (BlockingIOError, ssl.SSLWantReadError):
                return True
            except OSError:
                return False
            if not data:
                return False
            buffer = self._rest + data
            while len(buffer) >= 12:
                size, api_key, version, correlation_id = struct.unpack_from(">ihhi", buffer)
                if len(buffer) < 4 + size:
                    break
                reply = self._answerer.reply(api_key, version, correlation_id)
                if reply is None:
                    return False
                self._replies.append(reply)
                buffer = buffer[4 + size :]
            self._rest = buffer

    def send(self) -> bool:
        """Send as much as goes; False when the connection is over."""
        try:
            while self._replies:
                data, with_file = self._replies[0]
                if data:
                    sent = self.socket.send(data, self._more if with_file else 0)
                    self._replies[0] = (data[sent:], with_file)
                elif with_file and self._file_at < self._answerer.file_bytes:
                    self._file_at += self._send_file(self._answerer.file_bytes - self._file_at)
                else:
                    self._replies.popleft()
                    self._file_at = _HEAD_BYTES
        except (BlockingIOError, ssl.SSLWantWriteError):
            pass
        except OSError:
            return False
        return True

    def _send_file(self, count: int) -> int:
        if isinstance(self.socket, ssl.SSLSocket):
            return self.socket.send(self._answerer.response[self._file_at :])
        return os.sendfile(self.socket.fileno(), self._answerer.file, self._file_at, count)


class Answerer:
    """The listener and its connections, served one after another as they can go on."""

    def __init__(self, listener: socket.socket, records_bytes: int, topics: int, tls: ssl.SSLContext | None) -> None:
        response = fetch_response(records_bytes, topics)
        self.response: Final = memoryview(response)
        self.file: Final = os.memfd_create("fetch response")
        self.file_bytes: Final = os.write(self.file, response)
        if self.file_bytes != len(response):
            raise OSError(f"{self.file_bytes} of {len(response)} bytes fitted into the file in memory")
        self._head: Final = response[:4]
        self._produced: Final = produce_response(topics)
        self._listener: Final = listener
        self._tls: Final = tls
        self._address: Final = listener.getsockname()[:2]

    def reply(self, api_key: int, version: int, correlation_id: int) -> tuple[bytes, bool] | None:
        """Bytes, and whether the prepared file belongs behind them; None for what this peer does not answer."""
        match api_key, version:
            case (1, 15):  # FETCH, FETCH_VERSION
                return self._head + struct.pack(">i", correlation_id), True
            case (0, 11):  # PRODUCE, PRODUCE_VERSION
                return self._produced[:4] + struct.pack(">i", correlation_id) + self._produced[8:], False
            case (3, 1):  # METADATA, METADATA_VERSION
                return metadata_response(correlation_id, (1, *self._address)), False
            case (18, 0):  # API_VERSIONS
                return _api_versions(correlation_id), False
            case (18, _):
                return unsupported_api_versions_response(correlation_id)[:-2] + b"\0\0", False
        print(f"request of API {api_key} version {version} is not answered", file=sys.stderr, flush=True)
        return None

    def serve(self) -> None:
        """Until the process is ended."""
        peers: dict[int, Peer] = {}
        listening = self._listener.fileno()
        with select.epoll() as poller:
            poller.register(listening, select.EPOLLIN)
            while True:
                for number, event in poller.poll():
                    if number == listening:
                        connection, _ = self._listener.accept()
                        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                        if self._tls is not None:
                            connection.settimeout(ANSWER_LIMIT_S)
                            try:
                                connection = self._tls.wrap_socket(connection, server_side=True)
                            except OSError:  # who only looks whether the port is open
                                continue
                        connection.setblocking(False)
                        peers[connection.fileno()] = Peer(connection, self)
                        poller.register(connection.fileno(), select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
                        continue
                    peer = peers[number]
                    readable = event & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR)
                    if (readable and not peer.receive()) or not peer.send():
                        poller.unregister(number)
                        del peers[number]
                        peer.socket.close()


def main() -> int:
    """The program."""
    port, records_bytes, topics = map(int, sys.argv[1:4])
    tls = None
    if sys.argv[4:]:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(sys.argv[4])
    with socket.create_server(("127.0.0.1", port), backlog=4096) as listener:
        Answerer(listener, records_bytes, topics, tls).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
