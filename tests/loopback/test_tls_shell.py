"""TLS on real sockets, towards clients and towards a scripted broker, in this process."""

import shutil
import socket
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trio
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from proxy.app.sources.follow import Followed, Follower
from proxy.core.auth.identity import IdentityPolicy
from proxy.net.listen.server import Proxy
from proxy.net.tls.certificates import in_pem, valid_s
from proxy.net.tls.contexts import ClientTls, KeyPair, ServerTls, TlsFilesError
from proxy.net.tls.principal import PrincipalRules
from tests.support import scripted_broker as scripted
from tests.support.certificates import Authority, Issued
from tests.support.scripted_broker import answer, closed_reason, exchange, read_frame, through, until
from tests.support.session_tools import produce, produce_response
from tests.support.tls_proxies import broker_context, client_context

Stream = trio.abc.Stream
pytestmark = pytest.mark.usefixtures("tls_by")


@pytest.fixture
def tls(host: Issued, tls_by: str) -> ServerTls:
    return ServerTls(host.pair)


def put(issued: Issued, folder: Path) -> KeyPair:
    """Its files, in the place of those there."""
    return KeyPair(
        Path(shutil.copy(issued.chain, folder / "tls.crt")), Path(shutil.copy(issued.key, folder / "tls.key"))
    )


@asynccontextmanager
async def secured(proxy: Proxy, context: ssl.SSLContext) -> AsyncIterator[trio.SSLStream[trio.SocketStream]]:
    plain = await trio.open_tcp_stream("127.0.0.1", proxy.port)
    stream = trio.SSLStream(plain, context, server_hostname="localhost", https_compatible=True)
    try:
        await stream.do_handshake()
        yield stream
    finally:
        await trio.aclose_forcefully(stream)


@pytest.mark.parametrize(
    ("client_auth", "shown", "rules", "expected"),
    [
        ("required", True, "DEFAULT", ("CN=alice,OU=tests,O=kquota", "tls")),
        ("requested", True, "RULE:^.*CN=([^,]+).*$/$1/U", ("ALICE", "tls")),
        ("requested", False, "DEFAULT", ("pod", "static")),
        ("none", True, "DEFAULT", ("pod", "static")),
    ],
)
async def test_the_certificate_tells_the_user(
    issuer: Authority, host: Issued, client_auth: str, shown: bool, rules: str, expected: tuple[str, str]
) -> None:
    alice = issuer.issue("alice", common_name="alice")
    authorities = None if client_auth == "none" else issuer.certificate
    mapping = PrincipalRules(rules)
    tls = ServerTls(host.pair, client_auth=client_auth, client_authorities=authorities, rules=mapping)
    policy = IdentityPolicy(("tls", "static"), "pod")
    async with (
        through(answer, listen_tls=tls, identity=policy) as (proxy, _, _),
        secured(proxy, client_context(issuer, alice if shown else None)) as client,
    ):
        assert await exchange(client, produce(1, 100)) == produce_response(1)
        (info,) = proxy.each_connection()
        assert (sorted(info.user.split(",")), info.user_source) == (sorted(expected[0].split(",")), expected[1])


async def refused(proxy: Proxy, context: ssl.SSLContext) -> str:
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
    rules = PrincipalRules("RULE:^.*CN=(alice).*$/$1/")
    tls = ServerTls(
        host.pair, client_auth="required", client_authorities=issuer.certificate, rules=rules, handshake_timeout_s=2.0
    )
    eve, bob = stranger.issue("eve", common_name="eve"), issuer.issue("bob", common_name="bob")
    alice, expired = (issuer.issue(f"a{old}", common_name="alice", expired=old) for old in (False, True))
    old = client_context(issuer)
    old.set_ciphers("DEFAULT@SECLEVEL=0")
    for bound in ("minimum_version", "maximum_version"):
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            setattr(old, bound, ssl.TLSVersion.TLSv1_1)
    cases = [  # what the client gets, what is counted, what is logged
        (client_context(issuer), "certificate required", "certificate", "the client sent no certificate, but one is"),
        (client_context(issuer, eve), "unknown ca", "certificate", "is its authority in listen.tls.client_ca_file?"),
        (client_context(issuer, expired), "expired", "certificate", "certificate has expired"),
        (client_context(issuer, bob), "", "principal", "no rule of ssl.principal.mapping.rules matches"),
        (
            client_context(stranger),
            "certificate verify failed",
            "refused",
            "the client refused the TLS handshake: unknown",
        ),
        (old, "version", "version", "the client does not offer TLS 1.2 or later"),
    ]
    counted = Counter({("client", "not_tls"): 1, ("client", "timeout"): 1})
    async with (
        through(answer, listen_tls=tls) as (proxy, _, _),
        secured(proxy, client_context(issuer, alice)) as good,
        await trio.open_tcp_stream("127.0.0.1", proxy.port) as plain,
        await trio.open_tcp_stream("127.0.0.1", proxy.port) as silent,
    ):
        await plain.send_all(produce(1, 100))
        for context, result, reason, _ in cases:
            assert result in await refused(proxy, context)
            counted["client", reason] += 1
        await until(lambda: proxy.counters.tls_handshake_failures == counted)
        assert await silent.receive_some() == b""
        await until(lambda: proxy.counters.connections.closed["tls_handshake"] == 8)
        assert await exchange(good, produce(5, 100)) == produce_response(5)
        assert [one.user for one in proxy.each_connection()] == ["alice"]
    said = capsys.readouterr().out
    for expected in (*(log for *_, log in cases), "does not speak TLS here", "the TLS handshake within 2 s"):
        assert expected in said, expected


EXAMPLE_RULE = "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L,DEFAULT"
"""Kafka's own (security, "Customizing SSL User Name")."""


def repeated(groups: int) -> x509.Name:
    """A subject that has everything that the rule wants except a C, many times."""
    return x509.Name.from_rfc4514_string("CN=eve" + ",OU=xxxxx,O=xxxxx,L=xxxxx,ST=xxxxx" * groups)


async def test_mapping_rules_delay_nobody(issuer: Authority, host: Issued, capsys: pytest.CaptureFixture[str]) -> None:
    rules = PrincipalRules(EXAMPLE_RULE)
    tls = ServerTls(host.pair, client_auth="required", client_authorities=issuer.certificate, rules=rules)
    hostile = [(repeated(60), "need more than 2 ms for the subject"), (repeated(90), "at most 4096 are read")]
    good = x509.Name.from_rfc4514_string("CN=Alice,OU=Ops,O=X,L=x,ST=x,C=DE")
    async with through(answer, listen_tls=tls) as (proxy, _, _):
        contexts = [client_context(issuer)]
        contexts += [
            client_context(issuer, issuer.issue_subject(f"eve{n}", name)) for n, (name, _) in enumerate(hostile)
        ]
        took_s = []  # of this thread, which runs the proxy
        for context in contexts:
            before = time.thread_time()
            for _ in range(5):
                await refused(proxy, context)
            took_s.append(time.thread_time() - before)
        assert max(took_s) < 5 * took_s[0], "the first shows no certificate"
        await until(lambda: proxy.counters.tls_handshake_failures["client", "principal"] == 10)
        async with secured(proxy, client_context(issuer, issuer.issue_subject("alice", good))) as client:
            assert await exchange(client, produce(5, 100)) == produce_response(5)
            assert [one.user for one in proxy.each_connection()] == ["alice@ops"]
    said = capsys.readouterr().out
    assert all(expected in said for _, expected in hostile)


async def test_silent_handshakes_take_room_and_a_drain_ends_all(issuer: Authority, tls: ServerTls) -> None:
    go = trio.Event()

    async def slow(stream: Stream, frame: bytes) -> None:
        await go.wait()
        await answer(stream, frame)  # type: ignore[arg-type]

    async with through(slow, listen_tls=tls, max_connections=3) as (proxy, broker, _):
        async with secured(proxy, client_context(issuer)) as client, secured(proxy, client_context(issuer)) as idle:
            silent = await trio.open_tcp_stream("127.0.0.1", proxy.port)
            await until(lambda: proxy.counters.connections.opened == 3)
            refused = await trio.open_tcp_stream("127.0.0.1", proxy.port)
            assert await refused.receive_some(1) == b""
            await closed_reason(proxy, "max_connections")
            await client.send_all(produce(1, 100))
            await until(lambda: broker.received and len(list(proxy.each_connection())) == 2)
            proxy.drain()
            assert await idle.receive_some() == b""  # a goodbye, not a reset
            go.set()
            assert await read_frame(client) == produce_response(1)
            assert await client.receive_some() == b""
            await until(lambda: proxy.state == "stopped")
            assert await silent.receive_some() == b""
            await silent.aclose()
            await refused.aclose()
        assert proxy.counters.connections.closed["drained"] == 2


async def test_a_muted_client_that_goes_is_noticed(issuer: Authority, tls: ServerTls) -> None:
    """And what it sent before is taken; its goodbye alone, unread in the socket, is no reason to wait."""
    async with through(scripted.never_answer, quota=50_000, listen_tls=tls) as (proxy, broker, _):
        async with secured(proxy, client_context(issuer)) as client:
            await client.send_all(produce(1, 580_000, acks=0))  # a little over what the window has
            await until(lambda: proxy.counters.connections.muted == 1)
            await client.send_all(produce(2, 500, acks=0))
            with trio.move_on_after(0.1):
                await client.unwrap()
            assert proxy.counters.connections.muted == 1
        await until(lambda: len(broker.received) == 2)
        await closed_reason(proxy, "client_closed")


async def test_the_name_and_its_check_can_be_chosen(issuer: Authority, host: Issued) -> None:
    other = broker_context(issuer.issue("other", "elsewhere.example", common_name="other"))
    asked: list[str | None] = []
    other.sni_callback = lambda _sock, name, _context: asked.append(name)
    named = ClientTls(authorities=issuer.certificate, server_name="elsewhere.example")
    unchecked = ClientTls(authorities=issuer.certificate, verify_hostname=False)
    for tls in (named, unchecked):
        async with through(answer, upstream_tls=tls, broker_tls=other) as (proxy, _, _):
            await until(lambda proxy=proxy: proxy.cluster.reached)
            client = await trio.open_tcp_stream("127.0.0.1", proxy.port)
            assert await exchange(client, produce(1, 100)) == produce_response(1)
            await client.aclose()
    assert asked[:2] == ["elsewhere.example"] * 2
    assert asked[-1] is None  # an address is no name to ask for


async def test_an_authority_need_not_be_a_root(tmp_path: Path) -> None:
    """As in a trust store of Kafka's, in both directions."""
    root = trustme.CA()
    inner = root.create_child_ca()
    leaf, alone = inner.issue_cert("localhost", "127.0.0.1"), tmp_path / "inner.pem"
    inner.cert_pem.write_to_path(alone)
    cert, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    cert.write_bytes(leaf.cert_chain_pems[0].bytes())
    leaf.private_key_pem.write_to_path(key)
    client = ssl.create_default_context(cadata=root.cert_pem.bytes().decode() + inner.cert_pem.bytes().decode())
    client.load_cert_chain(cert, key)
    sides = {
        "listen_tls": ServerTls(KeyPair(cert, key), client_auth="required", client_authorities=alone),
        "upstream_tls": ClientTls(authorities=alone),
    }
    async with through(answer, broker_tls=broker_context(Issued(cert, key, key)), **sides) as (proxy, _, _):
        await until(lambda: proxy.cluster.reached)
        async with secured(proxy, client) as one:
            assert await exchange(one, produce(1, 100)) == produce_response(1)


async def test_files_that_change(issuer: Authority, host: Issued, tmp_path: Path) -> None:
    async def serial(proxy: Proxy) -> str:
        async with secured(proxy, client_context(issuer)) as client:
            return str(client.getpeercert()["serialNumber"])

    tls = ServerTls(put(host, tmp_path))
    whole = host.chain.read_bytes()
    assert tls.expires_at_s == min(end for _, end in map(valid_s, in_pem(whole.decode())))
    second = issuer.issue("second", "localhost", common_name="second")
    gone = issuer.issue("gone", "localhost", common_name="gone", expired=True)
    later = issuer.issue("later", "localhost", begins=datetime.now(UTC) + timedelta(days=1))
    refused = [
        (second.chain.read_bytes(), host, r"listen\.tls\.key_file .*tls\.key: is not the key of the certificate"),
        (gone.chain.read_bytes(), gone, r"listen\.tls\.certificate_file .*tls\.crt: expired at 20"),
        (later.chain.read_bytes(), later, r"listen\.tls\.certificate_file .*tls\.crt: is not valid before 20"),
        (whole + later.chain.read_bytes(), host, r"tls\.crt: its certificate 2 is not valid before 20"),
        ((whole * 2)[:-30], host, r"tls\.crt: a certificate is truncated: expected -----END"),
        (b"nothing", host, "expected certificates in PEM form"),
    ]
    async with through(answer, listen_tls=tls) as (proxy, _, _), secured(proxy, client_context(issuer)) as old:
        first = await serial(proxy)
        put(second, tmp_path)
        tls.load()
        now = await serial(proxy)
        assert now != first
        assert await exchange(old, produce(1, 100)) == produce_response(1)  # goes on as if nothing had happened
        for certificates, of, said in refused:
            put(of, tmp_path)
            (tmp_path / "tls.crt").write_bytes(certificates)
            with pytest.raises(TlsFilesError, match=said):
                tls.load()
        assert await serial(proxy) == now
    locked = load_pem_private_key(host.key.read_bytes(), None).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
    )
    (tmp_path / "tls.key").write_bytes(locked)
    with pytest.raises(TlsFilesError, match="is encrypted; expected a private key without a password"):
        ServerTls(KeyPair(host.chain, tmp_path / "tls.key"))
    at_start = ServerTls(gone.pair)
    assert (at_start.expires_at_s or 0) < time.time(), "at the start, better than none"
    assert str(at_start.not_valid).startswith("expired at 20")


def test_key_of_another_kind_and_weak_key(issuer: Authority, host: Issued, tmp_path: Path) -> None:
    def written(name: str, made: ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey) -> Path:
        path = tmp_path / name
        path.write_bytes(made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return path

    with pytest.raises(TlsFilesError, match=r"key_file .*ed: is not the key of the certificate in .* \(the first, if"):
        ServerTls(KeyPair(host.chain, written("ed", ed25519.Ed25519PrivateKey.generate())))
    weak, name = rsa.generate_private_key(65537, 1024), x509.Name([])
    begin, cert = datetime.now(UTC) - timedelta(days=1), tmp_path / "weak.crt"
    built = x509.CertificateBuilder(name, name, weak.public_key(), 1, begin, begin + timedelta(days=9))
    cert.write_bytes(built.sign(weak, hashes.SHA256()).public_bytes(Encoding.PEM))
    with pytest.raises(TlsFilesError, match=r"certificate_file .*weak.crt: is too weak \(EE_KEY_TOO_SMALL\); expected"):
        ServerTls(KeyPair(cert, written("weak", weak)))


@pytest.mark.usefixtures("quick_files")
async def test_follower_loads_a_certificate_when_it_becomes_valid(issuer: Authority, tmp_path: Path) -> None:
    tls = ServerTls(put(issuer.issue("before", "localhost"), tmp_path))
    before = tls.context
    files = Followed("listen.tls", tls.paths, tls.load)
    follower = Follower([files])
    put(issuer.issue("soon", "localhost", begins=datetime.now(UTC) + timedelta(seconds=3)), tmp_path)
    with trio.fail_after(40):
        async with scripted.background(follower.run):
            await until(lambda: files.failures)
            assert "is not valid before 20" in str(files.last_error)
            assert (tls.context, files.successful) == (before, False)
            await until(lambda: files.reloads)
            assert (files.failures, files.successful) == (1, True)
    assert tls.context is not before


async def test_a_storm_of_handshakes_leaves_others_their_turn(issuer: Authority, tls: ServerTls) -> None:
    async with through(answer, listen_tls=tls) as (proxy, _, _):
        context = client_context(issuer)
        async with secured(proxy, context) as client, trio.open_nursery() as nursery:
            done = 0

            async def come() -> None:
                nonlocal done
                async with secured(proxy, context) as one:
                    assert await exchange(one, produce(2, 100)) == produce_response(2)
                    done += 1

            for _ in range(60):
                nursery.start_soon(come)
            answered_before = 0
            while done < 60:
                assert await exchange(client, produce(1, 100)) == produce_response(1)
                answered_before += 1
            assert answered_before > 5
        assert proxy.counters.tls_handshakes["client"] == 61


async def test_half_close_delivers_what_is_owed(issuer: Authority, tls: ServerTls) -> None:
    """A goodbye without the end of the connection: OpenSSL has taken it from the kernel when it is seen."""

    async def later(stream: Stream, frame: bytes) -> None:
        await trio.sleep(0.2)
        await answer(stream, frame)  # type: ignore[arg-type]

    async with through(later, listen_tls=tls) as (proxy, _, _):

        def talk() -> bytes:
            plain = socket.create_connection(("127.0.0.1", proxy.port))
            with client_context(issuer).wrap_socket(plain, server_hostname="localhost") as client:
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)  # in one piece: requests and goodbye
                client.sendall(produce(1, 100) + produce(2, 100))
                client.setblocking(False)
                with suppress(ssl.SSLWantReadError):
                    client.unwrap()
                client.setblocking(True)
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
                got = b""
                with suppress(ssl.SSLZeroReturnError, ssl.SSLEOFError, ssl.SSLSyscallError):
                    while part := client.recv(65_536):
                        got += part
                return got

        assert await trio.to_thread.run_sync(talk) == produce_response(1) + produce_response(2)
        await closed_reason(proxy, "client_closed")
