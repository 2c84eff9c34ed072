"""What is shown where the kernel has TLS: `python -m tests.kernel_tls.checks [NAME...]`, a line of JSON a check.

Runs on a host whose kernel has the module `tls`, with the compiled data path, or in `tests.kernel_tls.machine`.
"""

from __future__ import annotations

import ctypes
import json
import random
import socket
import ssl
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import trio

from proxy.listen.server import Proxy
from proxy.tls import channel, kernel_tls
from proxy.tls.channel import TlsSocket
from tests.support import scripted_broker
from tests.support.certificates import Authority
from tests.support.scripted_broker import closed_reason, read_frame, through, until
from tests.support.tls_pairs import contexts, over_tcp
from tests.support.tls_proxies import client_context, connect, echo, tls_on, unknown_api

LIMIT_S = 60
"""A processor that is emulated is slow."""
LARGE_BYTES = 1 << 20


class Certificates:
    """An authority and a host's certificate by it."""

    def __init__(self) -> None:
        self.authority = Authority(Path(tempfile.mkdtemp()))
        self.host = self.authority.issue("host", "localhost", "127.0.0.1", common_name="host")

    def tls_on(self, *, by_client: bool, by_broker: bool) -> dict[str, Any]:
        """Of a proxy and a broker with TLS on these sides."""
        return tls_on(self.authority, self.host, by_client=by_client, by_broker=by_broker)

    async def connect(self, proxy: Proxy, *, by_client: bool = True) -> trio.abc.Stream:
        """A client's connection."""
        return await connect(proxy, client_context(self.authority) if by_client else None)


@contextmanager
def connected(
    certificates: Certificates, version: ssl.TLSVersion, *, ciphers: str = "", buffer_bytes: int | None = None
) -> Iterator[tuple[TlsSocket, ssl.SSLSocket]]:
    """Both ends of a connection over TCP: as the sidecar has it, and as a client has it that knows no kernel TLS."""
    server, client = contexts(certificates.authority, certificates.host)
    client.maximum_version = version
    if ciphers:
        client.set_ciphers(ciphers)
    with over_tcp((server, client), buffer_bytes) as ends:
        yield ends


def read_all(theirs: ssl.SSLSocket, count: int) -> bytes:
    """So many bytes, or those that come within the limit."""
    got, end = b"", time.monotonic() + LIMIT_S
    while len(got) < count and time.monotonic() < end:
        with suppress(ssl.SSLWantReadError):
            got += theirs.recv(65_536)
    return got


def statistics() -> dict[str, int]:
    """The kernel's own counters."""
    return {name: int(value) for name, value in map(str.split, Path("/proc/net/tls_stat").read_text().splitlines())}


def it_is_tried_at_the_start(_: Certificates) -> Any:
    assert kernel_tls.why_not() == ""
    assert channel.WHY_NOT == ""
    return Path("/proc/sys/net/ipv4/tcp_available_ulp").read_text().split()


def the_kernel_encrypts_and_openssl_decrypts(certificates: Certificates) -> Any:
    """Both versions of TLS, both directions at once, sockets of a few kilobytes."""
    shown: dict[str, Any] = {}
    for version in (ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_2):
        chance = random.Random(1)
        there, back = chance.randbytes(300_000), chance.randbytes(300_000)
        before = statistics()
        with connected(certificates, version, buffer_bytes=8192) as (ours, theirs):
            assert ours.channel is not None
            assert ours.channel.kernel_sends
            sent = full = 0
            to_ours, heard_back, heard_there = back, bytearray(), bytearray()
            end = time.monotonic() + LIMIT_S
            while (len(heard_there) < len(there) or len(heard_back) < len(back)) and time.monotonic() < end:
                part = there[sent : sent + chance.choice((1, 100, 16_385, 200_000))]
                try:
                    sent += ours.send(part) if part else 0
                except BlockingIOError:
                    full += 1
                with suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    to_ours = to_ours[theirs.send(to_ours[:8000]) :] if to_ours else b""
                with suppress(ssl.SSLWantReadError):
                    heard_there += theirs.recv(chance.choice((10, 5000)))
                buffer = bytearray(65_536)
                with suppress(BlockingIOError):
                    heard_back += buffer[: ours.recv_into(buffer)]
            assert bytes(heard_there) == there
            assert bytes(heard_back) == back
            assert full > 10
            ours.shutdown(socket.SHUT_WR)  # with a close_notify: an end, not a cut
            end = time.monotonic() + LIMIT_S
            while time.monotonic() < end:
                with suppress(ssl.SSLWantReadError):
                    assert theirs.recv(10) == b""
                    break
            else:
                raise AssertionError("no end")
            after = statistics()
            shown[str(ours.version())] = ours.cipher()
            assert after["TlsTxSw"] - before["TlsTxSw"] == 1
            assert after["TlsRxSw"] == before["TlsRxSw"]
    return shown


def a_cipher_that_the_kernel_may_lack_works(certificates: Certificates) -> Any:
    """ChaCha20: where its module is not loaded, OpenSSL encrypts."""
    with connected(certificates, ssl.TLSVersion.TLSv1_2, ciphers="ECDHE-ECDSA-CHACHA20-POLY1305") as (ours, theirs):
        assert ours.channel is not None
        data = random.Random(2).randbytes(100_000)
        assert ours.send(data) == len(data)
        assert read_all(theirs, len(data)) == data
        return {"cipher": ours.cipher(), "kernel_sends": ours.channel.kernel_sends}


def a_wish_for_new_keys_is_noticed(certificates: Certificates) -> Any:
    """TLS 1.3's KeyUpdate with a request; the peer reads what comes with the keys of before."""
    library = ctypes.CDLL("libssl.so.3")
    with connected(certificates, ssl.TLSVersion.TLSv1_3) as (ours, theirs):
        assert ours.channel is not None
        wanted = [ours.channel.new_keys_wanted]
        inner = ctypes.c_void_p.from_address(id(theirs._sslobj) + 24)  # type: ignore[attr-defined]
        assert library.SSL_key_update(inner, 1) == 1  # SSL_KEY_UPDATE_REQUESTED
        theirs.send(b"with new keys")
        buffer, end, got = bytearray(100), time.monotonic() + LIMIT_S, b""
        while not got and time.monotonic() < end:
            with suppress(BlockingIOError):
                got = bytes(buffer[: ours.recv_into(buffer)])
        assert got == b"with new keys"
        wanted.append(ours.channel.new_keys_wanted)
        assert wanted == [False, True]
        assert ours.send(b"with the old ones") == 17
        assert read_all(theirs, 17) == b"with the old ones"


def frame(size: int) -> bytes:
    """A request of about this size, which is passed on as it is."""
    return unknown_api(bytes(range(256)) * (size // 256))


def bodies_are_spliced_into_tls(certificates: Certificates) -> Any:
    """A whole sidecar, large requests and responses: TLS from the client, to the broker, and on both sides. What is
    read from a plain socket goes into kernel TLS by the kernel alone."""
    shown: dict[str, Any] = {}

    async def one(by_client: bool, by_broker: bool) -> None:
        before = statistics()
        async with through(echo, **certificates.tls_on(by_client=by_client, by_broker=by_broker)) as (proxy, _, _):
            await until(lambda: proxy.cluster_reached)
            stream, sent = await certificates.connect(proxy, by_client=by_client), frame(LARGE_BYTES)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stream.send_all, sent + sent)
                for _ in range(2):
                    assert (got := await read_frame(stream)) is not None
                    assert got[8:] == sent
            pipes = proxy.pipes_open
            await stream.aclose()
            await closed_reason(proxy, "client_closed")
        shown["both" if by_client and by_broker else "from the client" if by_client else "to the broker"] = {
            "pipes": pipes,
            "sessions": statistics()["TlsTxSw"] - before["TlsTxSw"],
        }

    for sides in ((True, False), (False, True), (True, True)):
        trio.run(one, *sides)
    assert shown["from the client"]["pipes"] > 0
    assert shown["to the broker"]["pipes"] > 0
    assert shown["both"]["pipes"] == 0  # neither side is plain
    assert all(each["sessions"] > 0 for each in shown.values())
    return shown


def a_client_that_wants_new_keys_is_answered_and_connects_again(certificates: Certificates) -> Any:
    library = ctypes.CDLL("libssl.so.3")

    async def main() -> None:
        async with through(echo, **certificates.tls_on(by_client=True, by_broker=False)) as (proxy, _, _):
            await until(lambda: proxy.cluster_reached)
            stream = await certificates.connect(proxy)
            assert isinstance(stream, trio.SSLStream)
            await stream.send_all(frame(256))
            assert await read_frame(stream) is not None
            inner = ctypes.c_void_p.from_address(id(stream._ssl_object._sslobj) + 24)  # type: ignore[attr-defined]
            assert library.SSL_key_update(inner, 1) == 1
            await stream.send_all(frame(512))
            got = await read_frame(stream)
            assert got is not None  # in flight: answered
            assert got[8:] == frame(512)
            assert await read_frame(stream) is None  # and then it ends
            await closed_reason(proxy, "drained")
            again = await certificates.connect(proxy)
            await again.send_all(frame(256))
            assert await read_frame(again) is not None
            await again.aclose()

    trio.run(main)


CHECKS = (
    it_is_tried_at_the_start,
    the_kernel_encrypts_and_openssl_decrypts,
    a_cipher_that_the_kernel_may_lack_works,
    a_wish_for_new_keys_is_noticed,
    bodies_are_spliced_into_tls,
    a_client_that_wants_new_keys_is_answered_and_connects_again,
)


def main() -> int:
    """Run all, or those that are named. Returns how many failed."""
    failed = 0
    scripted_broker.LIMIT_S = LIMIT_S
    certificates = Certificates()
    for check in CHECKS:
        if len(sys.argv) > 1 and check.__name__ not in sys.argv[1:]:
            continue
        began, error, shown = time.monotonic(), "", None
        try:
            shown = check(certificates)
        except BaseException:
            error = traceback.format_exc()
            failed += 1
        took_s = round(time.monotonic() - began, 1)
        print(json.dumps({"check": check.__name__, "error": error, "shown": shown, "took_s": took_s}), flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
