"""Clients that mean no good, in a process of their own, and a broker of that kind.

`python -m tests.support.attackers` obeys lines on its standard input, `KIND HOST:PORT SECONDS`, and answers each with a
line of JSON when the time is over: connections made, bytes sent, connections that the other side ended. Tests have it
by `attackers`.
"""

from __future__ import annotations

import json
import random
import select
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from threading import Thread
from typing import NamedTuple

from proxy.core.wire.messages import framed
from proxy.core.wire.primitives import uvarint

Address = tuple[str, int]

HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(range(192))
MAX_OPEN = 150


def request(api_key: int, version: int, body: bytes, client_id: bytes = b"attacker", *, tags: bytes = b"") -> bytes:
    """One whole request; `tags` are those of a flexible header."""
    header = struct.pack(">hhih", api_key, version, 7, len(client_id)) + client_id + tags
    return framed(header + body)


API_VERSIONS_0 = request(18, 0, b"")
METADATA_OF_ALL = request(3, 1, struct.pack(">i", -1))


# ---- connect, send this, wait until the other side ends it (or not), again and again; as fast as that goes ----


def garbage(dice: random.Random) -> bytes:
    return dice.randbytes(dice.choice((1, 20, 500, 20_000)))


def tls_hello(_dice: random.Random) -> bytes:
    return HELLO


def http_get(_dice: random.Random) -> bytes:
    return b"GET / HTTP/1.1\r\nHost: kafka\r\n\r\n"


def oversized_frames(dice: random.Random) -> bytes:
    return struct.pack(">i", dice.choice((-1, -(2**31), 0, 1, 7, 2**31 - 1, 104_857_601))) + bytes(40)


def endless_headers(_dice: random.Random) -> bytes:
    """A Metadata request whose header has tagged fields without end."""
    head = struct.pack(">hhih", 3, 9, 1, 7) + b"endless" + b"\xff\xff\xff\xff\x07"
    return struct.pack(">i", 50_000_000) + head + b"\1\0" * 50_000


def unknown_apis(dice: random.Random) -> bytes:
    return request(dice.choice((-1, 100, 999, 32_767)), dice.choice((-1, 0, 99)), bytes(30))


def cut_headers(dice: random.Random) -> bytes:
    whole = request(3, 9, b"\1\1\0\0", tags=b"\0")
    cut = dice.randrange(4, len(whole) - 4)
    return framed(whole[4:cut]) + bytes(60)


def client_ids(dice: random.Random) -> bytes:
    """Names that break lines, terminals, JSON and exposition formats."""
    raw = dice.choice(
        (b"\0\1\x1b[2J\r\n\x7f", b"\xff\xfe\xc3\x28" * 5, dice.randbytes(32_767), b'"}\n{"', b"\xe2\x80\xae")
    )
    return request(18, 0, b"", raw) * 3


def lying_arrays(dice: random.Random) -> bytes:
    """Administrators' requests, of which the arrays claim to have billions of elements."""
    key, version = dice.choice(((19, 7), (19, 2), (20, 6), (37, 3), (48, 1), (49, 1)))
    claims = (b"\xff\xff\xff\xff\x0f", b"\x80\x80\x80\x80\x08", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xfe", b"\x05")
    flexible = version > 2 or key in (48, 49)
    return request(key, version, dice.choice(claims) + dice.randbytes(20), tags=b"\0" if flexible else b"")


def resets_within_a_frame(_dice: random.Random) -> bytes:
    return struct.pack(">ihhih", 50_000, 0, 7, 1, -1) + bytes(3000)


ONCE: dict[str, Callable[[random.Random], bytes]] = {
    each.__name__: each
    for each in (garbage, tls_hello, http_get, oversized_frames, endless_headers, unknown_apis, cut_headers, client_ids,
                 lying_arrays, resets_within_a_frame)
}  # fmt: skip


def once(kind: str, target: Address, ends: float, done: Counter[str]) -> None:
    """One connection after the other."""
    dice = random.Random(kind)
    while time.monotonic() < ends:
        with suppress(OSError), socket.create_connection(target, timeout=1) as client:
            done["connections"] += 1
            client.settimeout(0.2)
            data = ONCE[kind](dice)
            if ONCE[kind] is resets_within_a_frame:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closes by a reset
                client.sendall(data)
                time.sleep(0.01)
                continue
            try:
                client.sendall(data)
                done["bytes"] += len(data)
                while client.recv(4096):
                    pass
            except TimeoutError:
                continue
            except OSError:
                pass
            done["ended"] += 1


# ---- many connections that are kept ----


DRIPPED = {
    "slow_before_login": API_VERSIONS_0,
    "slow_writers": METADATA_OF_ALL + struct.pack(">ihhih", 50_000, 0, 7, 1, -1) + bytes(40_000),
    "many_connections": b"",
    "half_closed": METADATA_OF_ALL + struct.pack(">ihhih", 50_000, 0, 7, 1, -1) + bytes(100),
}
"""What connections send bit by bit, what of it is over is sent byte by byte; none at all, or (half closed) at once."""


def dripping(kind: str, target: Address, ends: float, done: Counter[str]) -> None:
    """Very many connections, each of which says a byte now and then."""
    data = DRIPPED[kind]
    at_once = len(METADATA_OF_ALL) + 40 if kind == "slow_writers" else len(data) if kind == "half_closed" else 0
    with ExitStack() as stack:
        held: list[tuple[socket.socket, Iterator[int]]] = []
        while time.monotonic() < ends:
            if len(held) < MAX_OPEN:
                with suppress(OSError):
                    client = stack.enter_context(socket.create_connection(target, timeout=1))
                    client.sendall(data[:at_once])
                    if kind == "half_closed":
                        client.shutdown(socket.SHUT_WR)
                    held.append((client, iter(data[at_once:])))
                    done["connections"] += 1
                continue
            time.sleep(0.1)
            for client, rest in held:
                with suppress(OSError):
                    client.sendall(bytes([byte]) if (byte := next(rest, None)) is not None else b"")
        time.sleep(0.2)
        for client, _ in held:
            client.setblocking(False)
            with suppress(BlockingIOError):
                try:
                    while client.recv(65_536):
                        pass
                    done["ended"] += 1
                except ConnectionError:
                    done["ended"] += 1


# ---- one connection that sends what it can and reads nothing ----


FLOODS: dict[str, bytes] = {
    "flood_before_login": API_VERSIONS_0 * 1000,
    "flood_in_flight": METADATA_OF_ALL + request(10, 0, struct.pack(">h", 1) + b"g") * 1000,
    "flood_without_answers": request(0, 7, struct.pack(">hhii", -1, 0, 1000, 0)) * 1000,
    "slow_reader": METADATA_OF_ALL * 100,
}


def flooding(kind: str, target: Address, ends: float, done: Counter[str]) -> None:
    """Until the other side ends it, which is noticed by sending; then again."""
    while time.monotonic() < ends:
        with socket.create_connection(target, timeout=1) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            done["connections"] += 1
            client.settimeout(0.1)
            while time.monotonic() < ends:
                if kind == "slow_reader" and done["bytes"] > ENOUGH_BYTES:
                    time.sleep(0.1)
                    continue
                try:
                    done["bytes"] += client.send(FLOODS[kind])
                except TimeoutError:
                    continue
                except OSError:
                    done["ended"] += 1
                    break


# ---- connections that send much to do, at a bounded rate, and read what is answered ----


def _compact(elements: list[bytes]) -> bytes:
    """A compact array."""
    return uvarint(len(elements) + 1) + b"".join(elements)


MANY = 195_000
_OP = b"\x13producer_byte_rate" + struct.pack(">d?", 1.0, False) + b"\0"
_USER = b"\2\5user\2u\0"
_ONE = _USER + _compact([_OP]) + b"\0"


def _admin(api_key: int, body: bytes) -> bytes:
    return request(api_key, 1, body, tags=b"\0")


def _created(configs: list[bytes]) -> bytes:
    """A CreateTopics request: one topic of three partitions."""
    topic = b"\2t" + struct.pack(">ih", 3, 1) + b"\1" + _compact(configs) + b"\0"
    return request(19, 7, _compact([topic]) + struct.pack(">i?", 1000, False) + b"\0", tags=b"\0")


def _fetch(partitions: int) -> bytes:
    """The second Fetch of a session that there is not, of 33 bytes for each partition."""
    partition = struct.pack(">iiqiqi", 0, -1, 0, -1, -1, 1 << 20) + b"\0"
    topic = b"\2t" + _compact([partition] * partitions) + b"\0"
    head = struct.pack(">iiiibii", -1, 500, 1, 1 << 20, 0, 77, 1)
    return request(1, 12, head + _compact([topic]) + b"\1\1\0", tags=b"\0")


def names(count: int) -> bytes:
    """Requests of so many client-ids, which the sidecar answers itself: the version is unknown."""
    return b"".join(request(18, 99, b"", b"n%07d" % number) for number in range(count))


class Work(NamedTuple):
    """What is sent again and again, by how many connections."""

    connections: int
    make: Callable[[], bytes]
    alone: bool = False
    """Not before the former has been answered: what nothing has come of for a tenth of a second."""


WORK: dict[str, Work] = {
    "pipelined_versions": Work(2, lambda: request(18, 0, b"", b"") * 1000),
    "pipelined_descriptions": Work(2, lambda: _admin(48, b"\1\0\0") * 1000),
    "altered_operations": Work(1, lambda: _admin(49, b"\2" + _USER + _compact([_OP] * MANY) + b"\0\0\0")),
    "altered_entries": Work(1, lambda: _admin(49, _compact([_ONE] * (MANY // 3)) + b"\0\0")),
    "described_components": Work(1, lambda: _admin(48, _compact([b"\5user\2\0\0"] * MANY) + b"\0\0")),
    "many_administrators": Work(17, lambda: _admin(49, _compact([_ONE] * 4000) + b"\0\0")),
    "fetches_of_a_throttled_group": Work(17, lambda: _fetch(990)),
    "fetches_of_64_kb": Work(17, lambda: _fetch(1950)),
    "listed_counters": Work(2, lambda: b"GET /quotas?limit=10000 HTTP/1.1\r\nHost: localhost\r\n\r\n", alone=True),
    "created_configurations": Work(1, lambda: _created([b"\2k\2v\0"] * MANY)),
    "results_of_a_hostile_broker": Work(1, lambda: _created([]), alone=True),
}
TINY_BYTES_PER_S, LARGE_BYTES_PER_S = 1_000_000, 5_000_000
"""Of all connections: in tiny requests, and in large ones, of which some are to be complete in a second."""
ANSWERED_S = 0.1


def working(kind: str, target: Address, ends: float, done: Counter[str]) -> None:
    """Each connection sends its next part when the rate of all of them lets it."""
    work = WORK[kind]
    data, began = memoryview(work.make()), time.monotonic()
    rate = LARGE_BYTES_PER_S if len(data) >= 30_000 and not work.alone else TINY_BYTES_PER_S

    places: dict[socket.socket, int] = {}
    heard: dict[socket.socket, float] = {}
    try:
        for _ in range(work.connections):
            one = socket.create_connection(target, timeout=1)
            one.setblocking(False)
            places[one], heard[one] = 0, 0.0
            done["connections"] += 1
        while (now := time.monotonic()) < ends:
            may_send = list(places) if done["bytes"] < rate * (now - began) else []
            if work.alone:
                may_send = [one for one in may_send if places[one] or now - heard[one] >= ANSWERED_S]
            readable, writable, _ = select.select(list(places), may_send, [], 0.01)
            for one in readable:
                with suppress(BlockingIOError):
                    if not one.recv(1 << 20):
                        raise ConnectionError("the other side has ended it")
                    heard[one] = now
            for one in writable:
                with suppress(BlockingIOError):
                    sent = one.send(data[places[one] : places[one] + 65_536])
                    done["bytes"] += sent
                    places[one] += sent
                    if places[one] == len(data):
                        places[one], heard[one] = 0, now
                        done["whole"] += 1
    finally:
        for one in places:
            one.close()


ENOUGH_BYTES = 100_000
"""Of requests whose answers fill all buffers."""
KINDS = (*ONCE, *DRIPPED, *FLOODS)


def main() -> None:
    """The command."""
    for line in sys.stdin:
        kind, address, seconds = line.split()
        host, port = address.rsplit(":", 1)
        if kind == "broker":
            print(json.dumps({"port": hostile_broker((host, int(port)))}), flush=True)
            continue
        attack = once if kind in ONCE else dripping if kind in DRIPPED else working if kind in WORK else flooding
        done: Counter[str] = Counter()
        with suppress(OSError):
            attack(kind, (host, int(port)), time.monotonic() + float(seconds), done)
        print(json.dumps(done), flush=True)


# ---- a broker that passes all on to a real one, but answers CreateTopics with very many results ----

RESULTS = 100_000


def hostile_broker(real: Address) -> int:
    """Serve in threads; the port."""
    result = b"\2x" + bytes(16) + struct.pack(">h", 0) + b"\0" + struct.pack(">ih", 3, 1) + b"\1\0"
    told = b"\0" + struct.pack(">i", 0) + _compact([result] * RESULTS) + b"\0"
    server = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        while True:
            client, _ = server.accept()
            Thread(target=serve, args=(client, socket.create_connection(real)), daemon=True).start()

    def serve(client: socket.socket, broker: socket.socket) -> None:
        Thread(target=answer, args=(client, broker), daemon=True).start()
        with client, broker, suppress(OSError), client.makefile("rb") as requests:
            while prefix := requests.read(4):
                frame = requests.read(struct.unpack(">i", prefix)[0])
                if frame.startswith(b"\0\x13"):
                    client.sendall(framed(frame[4:8] + told))
                else:
                    broker.sendall(prefix + frame)

    def answer(client: socket.socket, broker: socket.socket) -> None:
        with suppress(OSError):
            while data := broker.recv(65_536):
                client.sendall(data)

    Thread(target=accept, daemon=True).start()
    return int(server.getsockname()[1])


# ---- the command, as tests have it ----


class Attackers:
    """The running process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.pid = process.pid
        self._orders, self._answers = process.stdin, process.stdout

    def begin(self, kind: str, address: str, seconds: float) -> None:
        """Attack the address."""
        self._orders.write(f"{kind} {address} {seconds}\n")
        self._orders.flush()

    def is_over(self, within_s: float) -> bool:
        """Whether the attack has ended; waits for that."""
        return bool(select.select([self._answers], [], [], within_s)[0])

    def done(self) -> Counter[str]:
        """What the attack that has ended did."""
        return Counter(json.loads(self._answers.readline()))

    def broker(self, real: str) -> str:
        """The address of a hostile broker before a real one."""
        self.begin("broker", real, 0)
        return f"127.0.0.1:{self.done()['port']}"


@contextmanager
def attackers() -> Iterator[Attackers]:
    """A process of them."""
    command = [sys.executable, "-m", "tests.support.attackers"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Attackers(process)
        finally:
            process.kill()


if __name__ == "__main__":
    main()
