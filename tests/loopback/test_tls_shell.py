"""TLS on real sockets, towards clients and towards a scripted broker, in this process."""

from __future__ import annotations

import shutil
import socket
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trio
from cryptography import x509
from cryptography.x509.oid import NameOID

from proxy.core.auth.identity import IdentityPolicy
from proxy.net.listen.server import Proxy
from proxy.net.tls.certificates import in_pem, not_after_s, subject
from proxy.net.tls.contexts import ClientTls, KeyPair, ServerTls, TlsFilesError
from proxy.net.tls.principal import PrincipalRules
from tests.support.certificates import Authority, Issued
from tests.support.scripted_broker import answer, closed_reason, never_answer, read_frame, through, until
from tests.support.session_tools import produce, produce_response
from tests.support.tls_proxies import broker_context, client_context, connect, echo, tls_on, unknown_api

Stream = trio.abc.Stream
pytestmark = pytest.mark.usefixtures("tls_by")


@pytest.fixture(scope="module")
def host(issuer: Authority) -> Issued:
    return issuer.issue("host", "127.0.0.1", "localhost", common_name="kquota")


def pair(issued: Issued) -> KeyPair:
    return KeyPair(issued.chain, issued.key)


@asynccontextmanager
async def secured(proxy: Proxy, context: ssl.SSLContext) -> AsyncIterator[trio.SSLStream[trio.SocketStream]]:
    plain = await trio.open_tcp_stream("127.0.0.1", proxy.port)
    stream = trio.SSLStream(plain, context, server_hostname="localhost", https_compatible=True)
    try:
        await stream.do_handshake()
        yield stream
    finally:
        await trio.aclose_forcefully(stream)


@pytest.mark.parametrize("by_client", [True, False])
@pytest.mark.parametrize("by_broker", [True, False])
async def test_large_frames_are_whole(issuer: Authority, host: Issued, by_client: bool, by_broker: bool) -> None:
    """Each combination of plain and TLS; frames many times as large as records, buffers and what sockets hold."""
    frame = unknown_api(bytes(range(256)) * 32_768)  # 8 MiB
    async with through(echo, **tls_on(issuer, host, by_client=by_client, by_broker=by_broker)) as (proxy, _, _):
        await until(lambda: proxy.cluster_reached)  # the sidecar's own question goes the same way
        stream = await connect(proxy, client_context(issuer) if by_client else None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.send_all, frame + frame)
            for _ in range(2):
                got = await read_frame(stream)
                assert got is not None
                assert got[8:] == frame
        await stream.aclose()
        await closed_reason(proxy, "client_closed")


async def test_handshakes_under_way_count_as_connections(issuer: Authority, host: Issued) -> None:
    """A silent client takes one of `limits.max_connections` too, until it leaves (or times out)."""
    async with through(answer, listen_tls=ServerTls(pair(host)), max_connections=3) as (proxy, _, _):
        async with secured(proxy, client_context(issuer)) as served:
            await until(lambda: len(list(proxy.each_connection())) == 1)
            silent = [await trio.open_tcp_stream("127.0.0.1", proxy.port) for _ in range(2)]
            await until(lambda: proxy.counters.connections_opened == 3)
            refused = await trio.open_tcp_stream("127.0.0.1", proxy.port)
            assert await refused.receive_some(1) == b""
            await refused.aclose()
            await closed_reason(proxy, "max_connections")
            for one in silent:
                await one.aclose()
            await until(lambda: proxy.counters.connections_closed["tls_handshake"] == 2)
            async with secured(proxy, client_context(issuer)):
                await until(lambda: len(list(proxy.each_connection())) == 2)
            await served.send_all(produce(1, 10))
            assert await read_frame(served) is not None
        assert proxy.counters.connections_closed["max_connections"] == 1


async def test_small_requests_in_pipelines_are_answered_in_order(issuer: Authority, host: Issued) -> None:
    async with (
        through(answer, listen_tls=ServerTls(pair(host))) as (proxy, _, _),
        secured(proxy, client_context(issuer)) as client,
    ):
        for _ in range(20):
            await client.send_all(produce(1, 100) + produce(2, 100_000) + produce(3, 100))
            for number in (1, 2, 3):
                assert await read_frame(client) == produce_response(number)


@pytest.mark.parametrize(
    ("client_auth", "shown", "rules", "expected"),
    [
        ("required", True, "DEFAULT", ("OU=tests,O=kquota,CN=alice", "tls")),
        ("requested", True, "RULE:^.*CN=([^,]+).*$/$1/U", ("ALICE", "tls")),
        ("requested", False, "DEFAULT", ("pod", "static")),
        ("none", True, "DEFAULT", ("pod", "static")),
    ],
)
async def test_the_certificate_tells_the_user(
    issuer: Authority, host: Issued, client_auth: str, shown: bool, rules: str, expected: tuple[str, str]
) -> None:
    alice = issuer.issue("alice", common_name="alice")
    assert subject(in_pem(alice.chain.read_text())[0]).count("=") == 3
    tls = ServerTls(
        pair(host),
        client_auth=client_auth,
        client_authorities=None if client_auth == "none" else issuer.certificate,
        rules=PrincipalRules(rules),
    )
    policy = IdentityPolicy(("tls", "static"), "pod")
    async with (
        through(answer, listen_tls=tls, identity=policy) as (proxy, _, _),
        secured(proxy, client_context(issuer, alice if shown else None)) as client,
    ):
        await client.send_all(produce(1, 100))
        assert await read_frame(client) == produce_response(1)
        (info,) = proxy.each_connection()
        user = ",".join(sorted(info.user.split(","), reverse=True))
        assert (user, info.user_source) == (",".join(sorted(expected[0].split(","), reverse=True)), expected[1])


async def refused(proxy: Proxy, context: ssl.SSLContext) -> str:
    """How a handshake, or the first read after it, fails for a client that does not get in."""

    def attempt() -> str:
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as plain:
            try:
                with context.wrap_socket(plain, server_hostname="localhost") as client:
                    client.sendall(produce(1, 5000))  # TLS 1.3: the client learns of it by its first read
                    assert client.recv(1) == b"", "expected a refusal"
                    return "closed"
            except OSError as error:
                return str(error).lower().replace("_", " ")

    return await trio.to_thread.run_sync(attempt)


async def test_refusal_is_told_to_both_ends_and_harms_no_other(
    issuer: Authority, stranger: Authority, host: Issued, capsys: pytest.CaptureFixture[str]
) -> None:
    tls = ServerTls(
        pair(host),
        client_auth="required",
        client_authorities=issuer.certificate,
        rules=PrincipalRules("RULE:^.*CN=(alice).*$/$1/"),
        handshake_timeout_s=2.0,
    )
    alice = client_context(issuer, issuer.issue("alice", common_name="alice"))
    async with through(answer, listen_tls=tls) as (proxy, _, _), secured(proxy, alice) as good:

        def failures(reason: str) -> int:
            return proxy.counters.tls_handshake_failures["client", reason]

        # no certificate, another authority's, none that the rules know, an expired one
        assert "certificate required" in await refused(proxy, client_context(issuer))
        unknown = client_context(issuer, stranger.issue("eve", common_name="eve"))
        assert "unknown ca" in await refused(proxy, unknown)
        expired = issuer.issue("old", common_name="alice", expired=True)
        assert "expired" in await refused(proxy, client_context(issuer, expired))
        await until(lambda: failures("certificate") == 3)
        unmapped = client_context(issuer, issuer.issue("bob", common_name="bob"))
        await refused(proxy, unmapped)
        await until(lambda: failures("principal") == 1)

        # a client that trusts another authority says so
        assert "certificate verify failed" in await refused(proxy, client_context(stranger))
        await until(lambda: failures("refused") == 1)

        # TLS 1.1
        old = client_context(issuer)
        old.set_ciphers("DEFAULT@SECLEVEL=0")
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.minimum_version = ssl.TLSVersion.TLSv1_1
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        assert "version" in await refused(proxy, old)
        await until(lambda: failures("version") == 1)

        # Kafka's protocol without TLS, and a client that says nothing
        plain = await trio.open_tcp_stream("127.0.0.1", proxy.port)
        await plain.send_all(produce(1, 100))
        silent = await trio.open_tcp_stream("127.0.0.1", proxy.port)
        await until(lambda: failures("not_tls") == 1 and failures("timeout") == 1)
        assert await silent.receive_some() == b""
        await plain.aclose()
        await silent.aclose()

        await until(lambda: proxy.counters.connections_closed["tls_handshake"] == 8)
        await good.send_all(produce(5, 100))
        assert await read_frame(good) == produce_response(5)
        assert [one.user for one in proxy.each_connection()] == ["alice"]
    said = capsys.readouterr().out
    for expected in (
        "the client showed no certificate, and one is required",
        "is listen.tls.client_ca_file its authority?",
        "certificate has expired",
        "no rule of ssl.principal.mapping.rules matches",
        "the client refused the TLS handshake: unknown ca",
        "the client offers no version of TLS from 1.2 on",
        "the client does not speak TLS here",
        "did not finish the TLS handshake within 2 s",
    ):
        assert expected in said, expected


EXAMPLE_RULE = "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L,DEFAULT"
"""Kafka's own (security, "Customizing SSL User Name")."""


def repeated(groups: int) -> x509.Name:
    """A subject that has everything that the rule wants except a C, many times."""
    four = [NameOID.STATE_OR_PROVINCE_NAME, NameOID.LOCALITY_NAME, NameOID.ORGANIZATION_NAME]
    kinds = [*four, NameOID.ORGANIZATIONAL_UNIT_NAME] * groups
    return x509.Name([x509.NameAttribute(kind, "x" * 5) for kind in kinds] + [common_name("eve")])


def common_name(name: str) -> x509.NameAttribute[str]:
    return x509.NameAttribute(NameOID.COMMON_NAME, name)


async def test_no_subject_makes_mapping_rules_hold_up_others(
    issuer: Authority, host: Issued, capsys: pytest.CaptureFixture[str]
) -> None:
    """60 groups took 1.9 s of the event loop, 90 of them 14.6 s."""
    tls = ServerTls(
        pair(host), client_auth="required", client_authorities=issuer.certificate, rules=PrincipalRules(EXAMPLE_RULE)
    )
    hostile = [(repeated(60), "need more than 2 ms for the subject"), (repeated(90), "at most 4096 are read")]
    parts = {"ST": "x", "L": "x", "O": "X", "OU": "Ops", "CN": "Alice"}
    good = x509.Name([x509.NameAttribute(NameOID.COUNTRY_NAME, "DE"), *x509.Name.from_rfc4514_string(
        ",".join(f"{kind}={value}" for kind, value in reversed(parts.items()))
    )])  # fmt: skip
    async with through(answer, listen_tls=tls) as (proxy, _, _):
        for number, (name, _) in enumerate(hostile):
            context = client_context(issuer, issuer.issue_subject(f"eve-{number}", name))
            before = time.thread_time()
            for _ in range(5):
                await refused(proxy, context)
            assert time.thread_time() - before < 0.5, "of this thread, which runs the proxy"
        await until(lambda: proxy.counters.tls_handshake_failures["client", "principal"] == 10)
        async with secured(proxy, client_context(issuer, issuer.issue_subject("alice", good))) as client:
            await client.send_all(produce(5, 100))
            assert await read_frame(client) == produce_response(5)
            assert [one.user for one in proxy.each_connection()] == ["alice@ops"]
    said = capsys.readouterr().out
    for _, expected in hostile:
        assert expected in said, expected


async def test_the_name_and_its_check_can_be_chosen(issuer: Authority, host: Issued) -> None:
    other = broker_context(issuer.issue("other", "elsewhere.example", common_name="other"))
    asked: list[str | None] = []
    other.sni_callback = lambda _sock, name, _context: asked.append(name)
    named = ClientTls(authorities=issuer.certificate, server_name="elsewhere.example")
    unchecked = ClientTls(authorities=issuer.certificate, verify_hostname=False)
    for tls in (named, unchecked):
        async with through(answer, upstream_tls=tls, broker_tls=other) as (proxy, _, _):
            await until(lambda proxy=proxy: proxy.cluster_reached)
            client = await trio.open_tcp_stream("127.0.0.1", proxy.port)
            await client.send_all(produce(1, 100))
            assert await read_frame(client) == produce_response(1)
            await client.aclose()
    assert asked[:2] == ["elsewhere.example"] * 2
    assert asked[-1] is None  # an address is no name to ask for


async def test_a_muted_client_that_goes_is_noticed(issuer: Authority, host: Issued) -> None:
    """Its goodbye lies unread in the socket; that alone is no reason to wait for the end of the mute."""
    async with through(answer, quota=1000, listen_tls=ServerTls(pair(host))) as (proxy, _, _):
        plain = await trio.open_tcp_stream("127.0.0.1", proxy.port)
        client = trio.SSLStream(plain, client_context(issuer), server_hostname="localhost", https_compatible=False)
        await client.send_all(produce(1, 100_000))
        assert await read_frame(client) is not None
        await until(lambda: proxy.counters.connections_muted == 1)
        with trio.move_on_after(0.1):
            await client.unwrap()  # close_notify, and no answer to it from a peer that does not read
        assert proxy.counters.connections_muted == 1
        await plain.aclose()
        await closed_reason(proxy, "client_closed")


async def test_what_a_muted_client_sent_before_it_went_is_taken(issuer: Authority, host: Issued) -> None:
    async with through(never_answer, quota=50_000, listen_tls=ServerTls(pair(host))) as (proxy, broker, _):
        async with secured(proxy, client_context(issuer)) as client:
            await client.send_all(produce(1, 580_000, acks=0))  # a little over what the window has
            await until(lambda: proxy.counters.connections_muted == 1)
            await client.send_all(produce(2, 500, acks=0))
        await until(lambda: len(broker.received) == 2)


async def test_drain(issuer: Authority, host: Issued) -> None:
    go = trio.Event()

    async def slow(stream: Stream, frame: bytes) -> None:
        await go.wait()
        await answer(stream, frame)  # type: ignore[arg-type]

    async with through(slow, listen_tls=ServerTls(pair(host))) as (proxy, broker, _):
        async with secured(proxy, client_context(issuer)) as client, secured(proxy, client_context(issuer)) as idle:
            in_handshake = await trio.open_tcp_stream("127.0.0.1", proxy.port)
            await client.send_all(produce(1, 100))
            await until(lambda: broker.received and len(list(proxy.each_connection())) == 2)
            proxy.drain()
            assert await idle.receive_some() == b""  # a goodbye, not a reset
            go.set()
            assert await read_frame(client) == produce_response(1)
            assert await client.receive_some() == b""
            await until(lambda: proxy.state == "stopped")
            assert await in_handshake.receive_some() == b""
            await in_handshake.aclose()
        assert proxy.counters.connections_closed["drained"] == 2


async def test_half_close_delivers_what_is_owed(issuer: Authority, host: Issued) -> None:
    """A goodbye without the end of the connection: OpenSSL has taken it from the kernel when it is seen."""

    async def later(stream: Stream, frame: bytes) -> None:
        await trio.sleep(0.2)
        await answer(stream, frame)  # type: ignore[arg-type]

    async with through(later, listen_tls=ServerTls(pair(host))) as (proxy, _, _):

        def talk() -> bytes:
            with socket.create_connection(("127.0.0.1", proxy.port)) as plain:
                incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
                tls = client_context(issuer).wrap_bio(incoming, outgoing, server_hostname="localhost")

                def step(what: Any) -> Any:
                    while True:
                        try:
                            done = what()
                        except ssl.SSLWantReadError:
                            plain.sendall(outgoing.read())
                            data = plain.recv(65536)
                            incoming.write(data) if data else incoming.write_eof()
                        else:
                            plain.sendall(outgoing.read())
                            return done

                step(tls.do_handshake)
                tls.write(produce(1, 100) + produce(2, 100))
                with suppress(ssl.SSLWantReadError):
                    tls.unwrap()
                plain.sendall(outgoing.read())  # in one piece: requests and goodbye
                got = b""
                with suppress(ssl.SSLZeroReturnError, ssl.SSLEOFError, ssl.SSLSyscallError):
                    while part := step(lambda: tls.read(65536)):
                        got += part
                return got

        assert await trio.to_thread.run_sync(talk) == produce_response(1) + produce_response(2)
        await closed_reason(proxy, "client_closed")


async def test_files_that_change(issuer: Authority, host: Issued, tmp_path: Path) -> None:
    cert, key = tmp_path / "tls.crt", tmp_path / "tls.key"

    def put(issued: Issued) -> None:
        shutil.copy(issued.chain, cert)
        shutil.copy(issued.key, key)

    async def serial(proxy: Proxy) -> str:
        async with secured(proxy, client_context(issuer)) as client:
            return str(client.getpeercert()["serialNumber"])

    put(host)
    tls = ServerTls(KeyPair(cert, key))
    assert tls.expires_at_s == min(map(not_after_s, in_pem(host.chain.read_text())))
    second = issuer.issue("second", "localhost", common_name="second")
    async with through(answer, listen_tls=tls) as (proxy, _, _), secured(proxy, client_context(issuer)) as old:
        first = await serial(proxy)
        put(second)
        tls.load()
        assert await serial(proxy) != first
        now = await serial(proxy)
        await old.send_all(produce(1, 100))  # goes on as if nothing had happened
        assert await read_frame(old) == produce_response(1)

        shutil.copy(host.key, key)
        with pytest.raises(TlsFilesError, match=r"listen\.tls\.key_file .*tls\.key: is not the key of the certificate"):
            tls.load()
        put(issuer.issue("gone", "localhost", common_name="gone", expired=True))
        with pytest.raises(TlsFilesError, match=r"listen\.tls\.certificate_file .*tls\.crt: has expired at 20"):
            tls.load()
        cert.write_text("nothing")
        with pytest.raises(TlsFilesError, match="expected certificates in PEM form"):
            tls.load()
        cert.unlink()
        with pytest.raises(TlsFilesError, match="cannot be read: No such file"):
            tls.load()
        assert await serial(proxy) == now


def test_a_key_with_a_password_is_refused(issuer: Authority, host: Issued, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(host.key.read_bytes(), None)
    locked = tmp_path / "locked.pem"
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(TlsFilesError, match="is encrypted; expected a private key without a password"):
        ServerTls(KeyPair(host.chain, locked))


async def test_a_storm_of_handshakes_leaves_others_their_turn(issuer: Authority, host: Issued) -> None:
    """While 60 clients shake hands at once, one that is connected goes on. Generous: how well, docs/tls.md says."""
    async with through(answer, listen_tls=ServerTls(pair(host))) as (proxy, _, _):
        context = client_context(issuer)
        async with secured(proxy, context) as client, trio.open_nursery() as nursery:
            done = 0

            async def come() -> None:
                nonlocal done
                async with secured(proxy, context) as one:
                    await one.send_all(produce(2, 100))
                    assert await read_frame(one) == produce_response(2)
                    done += 1

            for _ in range(60):
                nursery.start_soon(come)
            answered_before = 0
            while done < 60:
                await client.send_all(produce(1, 100))
                assert await read_frame(client) == produce_response(1)
                answered_before += 1
            assert answered_before > 5
        assert proxy.counters.tls_handshakes["client"] == 61


def test_an_expired_pair_at_the_start_is_better_than_none(issuer: Authority) -> None:
    old = issuer.issue("old-host", "localhost", common_name="old", expired=True)
    tls = ServerTls(pair(old))
    assert tls.expires_at_s is not None
    assert tls.expires_at_s < time.time()
    assert abs(datetime.fromtimestamp(tls.expires_at_s, UTC) - datetime.now(UTC)) < timedelta(days=3)
