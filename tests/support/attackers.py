"""Clients that mean no good: `attack` runs in a process of its own."""

from __future__ import annotations

import random
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

from proxy.core.wire.messages import framed

Address = tuple[str, int]

HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(range(192))
MAX_OPEN = 150
SIZES = (-1, -(2**31), 0, 1, 7, 2**31 - 1, 104_857_601)
"""No frame has one of these sizes."""


def request(api_key: int, version: int, body: bytes, client_id: bytes = b"attacker", *, tags: bytes = b"") -> bytes:
    header = struct.pack(">hhih", api_key, version, 7, len(client_id)) + client_id + tags
    return framed(header + body)


API_VERSIONS_0 = request(18, 0, b"")
METADATA_OF_ALL = request(3, 1, struct.pack(">i", -1))


def endless_headers(_dice: random.Random) -> bytes:
    """A Metadata request whose header has tagged fields without end."""
    head = struct.pack(">hhih", 3, 9, 1, 7) + b"endless" + b"\xff\xff\xff\xff\x07"
    return struct.pack(">i", 50_000_000) + head + b"\1\0" * 50_000


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


ONCE: dict[str, Callable[[random.Random], bytes]] = {
    "garbage": lambda dice: dice.randbytes(dice.choice((1, 20, 500, 20_000))),
    "tls_hello": lambda _: HELLO,
    "http_get": lambda _: b"GET / HTTP/1.1\r\nHost: kafka\r\n\r\n",
    "oversized_frames": lambda dice: struct.pack(">i", dice.choice(SIZES)) + bytes(40),
    "endless_headers": endless_headers,
    "unknown_apis": lambda dice: request(dice.choice((-1, 100, 999, 32_767)), dice.choice((-1, 0, 99)), bytes(30)),
    "cut_headers": cut_headers,
    "client_ids": client_ids,
    "lying_arrays": lying_arrays,
    "resets_within_a_frame": lambda _: struct.pack(">ihhih", 50_000, 0, 7, 1, -1) + bytes(3000),
}


def once(kind: str, target: Address, ends: float, done: Counter[str]) -> None:
    dice = random.Random(kind)
    while time.monotonic() < ends:
        with suppress(OSError), socket.create_connection(target, timeout=1) as client:
            done["connections"] += 1
            client.settimeout(0.2)
            data = ONCE[kind](dice)
            if kind == "resets_within_a_frame":
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
                with suppress(ConnectionError):
                    while client.recv(65_536):
                        pass
                done["ended"] += 1


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


ENOUGH_BYTES = 100_000
"""Of requests whose answers fill all buffers."""
KINDS = (*ONCE, *DRIPPED, *FLOODS)


def attack(kind: str, address: str, seconds: float) -> Counter[str]:
    host, port = address.rsplit(":", 1)
    run = once if kind in ONCE else dripping if kind in DRIPPED else flooding
    done: Counter[str] = Counter()
    with suppress(OSError):
        run(kind, (host, int(port)), time.monotonic() + seconds, done)
    return done
