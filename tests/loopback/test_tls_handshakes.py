"""Handshakes against Python's `ssl`, by both implementations of TLS: what is accepted, and what is said of the rest."""

import random
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest
import trio
from cryptography import x509
from cryptography.x509.oid import NameOID

from proxy.core.errors import UpstreamError
from proxy.core.telemetry.observer import Counters
from proxy.net.tls.certificates import in_pem
from proxy.net.tls.channel import TlsSocket
from proxy.net.tls.contexts import ClientTls, ServerTls, explain
from proxy.net.tls.handshakes import Handshakes
from proxy.net.tls.python_ssl import Context
from tests.support.certificates import Authority, Issued
from tests.support.tls_pairs import shake_hands
from tests.support.tls_proxies import broker_context, client_context

pytestmark = pytest.mark.usefixtures("tls_by")
versions = pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])


@contextmanager
def ends(
    ours: Context, theirs: ssl.SSLContext, name: str | None = None, session: ssl.SSLSession | None = None
) -> Iterator[tuple[TlsSocket, ssl.SSLSocket]]:
    """Both before the handshake; we are the client if there is a name."""
    near, far = socket.socketpair()
    with ExitStack() as opened:
        for one in (near, far):
            opened.enter_context(one)
            one.setblocking(False)
        server = name is not None
        peer = theirs.wrap_socket(
            far, server, server_hostname=None if server else "localhost", do_handshake_on_connect=False, session=session
        )
        yield opened.enter_context(TlsSocket(ours, near, name)), opened.enter_context(peer)


def outcome(ours: TlsSocket, theirs: ssl.SSLSocket) -> BaseException | None:
    for _ in range(6):
        with suppress(OSError):
            theirs.do_handshake()
        try:
            ours.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except OSError as error:
            return error
    return None


MISMATCH = "the broker's certificate is refused: {} mismatch, certificate is not valid for {!r}."
SERVERS = {  # what the certificate is for, what is asked for, what is said
    "name": ("localhost", "localhost", None),
    "another name": ("elsewhere.test", "localhost", MISMATCH.format("Hostname", "localhost")),
    "address": ("127.0.0.1", "127.0.0.1", None),
    "name for an address": ("localhost", "127.0.0.1", MISMATCH.format("IP address", "127.0.0.1")),
    "wildcard": ("*.kafka.test", "b-1.kafka.test", None),
    "wildcard of two labels": ("*.kafka.test", "b.1.kafka.test", MISMATCH.format("Hostname", "b.1.kafka.test")),
    "wildcard in a label": ("b*.kafka.test", "b1.kafka.test", MISMATCH.format("Hostname", "b1.kafka.test")),
    "international name": ("käfka.test".encode("idna").decode(), "käfka.test", None),
}


@versions
@pytest.mark.parametrize("case", SERVERS)
def test_brokers_certificate_has_its_name(issuer: Authority, version: ssl.TLSVersion, case: str) -> None:
    of, asked, said = SERVERS[case]
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    odd = "b*" in of  # more than trustme issues
    issued = issuer.issue_subject("odd", name, of) if odd else issuer.issue("server", of, common_name="localhost")
    with ends(ClientTls(authorities=issuer.certificate).context, broker_context(issued, version), asked) as both:
        error = outcome(*both)
    assert (error is None) == (said is None)
    if error is not None:
        expected = ("certificate", f"{said}; upstream.tls.server_name can name the right one")
        assert explain(error, of_broker=True) == expected


@versions
def test_broker_certificate_has_authority(issuer: Authority, stranger: Authority, version: ssl.TLSVersion) -> None:
    expired = issuer.issue("expired", "localhost", expired=True)
    cases = ((stranger.issue("other", "localhost"), "unable to get local issuer"), (expired, "certificate has expired"))
    for issued, said in cases:
        context = ClientTls(authorities=issuer.certificate, verify_hostname=False).context
        with ends(context, broker_context(issued, version), "elsewhere.test") as both:
            error = outcome(*both)
        assert isinstance(error, ssl.SSLCertVerificationError)
        assert said in error.verify_message
        assert error.reason == "CERTIFICATE_VERIFY_FAILED"
        assert str(error.strerror).startswith("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: ")


@versions
@pytest.mark.parametrize("asked", ["none", "requested", "required"])
def test_clients_certificate_is_asked_for(
    issuer: Authority, stranger: Authority, host: Issued, version: ssl.TLSVersion, asked: str
) -> None:
    tls = ServerTls(host.pair, client_auth=asked, client_authorities=issuer.certificate)
    alice, eve = issuer.issue("alice", common_name="alice"), stranger.issue("eve", common_name="eve")
    refused = asked != "none"
    for shown, fails in ((alice, False), (None, asked == "required"), (eve, refused)):
        with ends(tls.context, client_context(issuer, shown, version)) as (ours, theirs):
            error = outcome(ours, theirs)
            assert (error is not None) == fails
            if error is None:
                der = ours.channel.peer_certificate
                assert der == (in_pem(alice.chain.read_text())[0] if refused and shown else None)
                assert theirs.cipher() is not None
            else:
                assert explain(error, of_broker=False)[0] == "certificate"


@versions
def test_resumed_session_keeps_user_and_name(issuer: Authority, host: Issued, version: ssl.TLSVersion) -> None:
    tls = ServerTls(host.pair, client_auth="required", client_authorities=issuer.certificate)
    alice = issuer.issue("alice", common_name="alice")
    context = client_context(issuer, alice, version)
    session = None
    for resumed in (False, True, True):
        with ends(tls.context, context, session=session) as (ours, theirs):
            shake_hands(ours, theirs)
            with suppress(ssl.SSLWantReadError):
                theirs.recv(1)  # tickets
            assert theirs.session_reused == resumed
            assert ours.channel.server_name == "localhost"
            assert ours.channel.peer_certificate == in_pem(alice.chain.read_text())[0]
            session = theirs.session
    other = ServerTls(host.pair, client_auth="required", client_authorities=issuer.certificate)
    with ends(other.context, context, session=session) as (ours, theirs):  # as after a rotation
        shake_hands(ours, theirs)
        assert not theirs.session_reused


def test_same_ciphers_are_offered(issuer: Authority, host: Issued) -> None:
    """To brokers as by Python's `ssl`; and clients with none of them are refused."""
    offered = []
    for kind in (ClientTls(authorities=issuer.certificate).context, Context(False, ssl.CERT_NONE)):
        context = broker_context(host)
        context.set_ciphers("ALL:@SECLEVEL=0")
        with ends(kind, context, "localhost") as (ours, theirs):
            shake_hands(ours, theirs)
            offered.append(theirs.shared_ciphers())
    assert offered[0] == offered[1]
    old = client_context(issuer, None, ssl.TLSVersion.TLSv1_2)
    old.set_ciphers("AES128-SHA:@SECLEVEL=0")
    with ends(ServerTls(host.pair).context, old) as both:
        error = outcome(*both)
    assert error is not None
    assert explain(error, of_broker=False) == ("other", "TLS handshake with the client: no shared cipher")


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"", "closed"),
        (bytes.fromhex("1603030001"), "closed"),
        (bytes.fromhex("160303000401000000"), "other"),
        (b"GET / HTTP/1.1\r\n\r\n", "not_tls"),
        (bytes.fromhex("0000004000030000"), "not_tls"),
        (random.Random(1).randbytes(3000), "not_tls"),
    ],
)
def test_garbage_is_no_handshake(host: Issued, sent: bytes, reason: str) -> None:
    near, far = socket.socketpair()
    with far, TlsSocket(ServerTls(host.pair).context, near) as ours:
        far.send(sent)
        far.shutdown(socket.SHUT_WR)
        with pytest.raises(OSError, match=r".") as failed:
            ours.do_handshake()
        assert explain(failed.value, of_broker=False)[0] == reason


async def test_odd_server_names_are_no_fault_of_ours(issuer: Authority) -> None:
    """In transparent mode a client chooses what its broker is asked for."""
    counters = Counters()
    for name in ("a..b", "x" * 64 + ".test", ".test", ""):
        near, far = socket.socketpair()
        near.setblocking(False)
        with far, pytest.raises(UpstreamError, match="TLS handshake with the broker"), trio.fail_after(5):
            await Handshakes(counters).with_broker(ClientTls(authorities=issuer.certificate), near, name, 9092)
        assert near.fileno() == -1
    assert counters.tls_handshake_failures == {("broker", "other"): 4}


def test_plaintext_never_reaches_the_socket(host: Issued) -> None:
    near, far = socket.socketpair()
    with far, TlsSocket(ServerTls(host.pair).context, near) as ours:
        for call in (ours.send, ours.sendall):
            with pytest.raises(TypeError, match="goes through its channel"):
                call(b"plain")


@versions
def test_handshake_byte_by_byte(issuer: Authority, host: Issued, version: ssl.TLSVersion) -> None:
    """And through sockets that hold little: neither side waits for what the other waits for."""
    near, middle = socket.socketpair()
    far, end = socket.socketpair()
    with near, middle, far, end:
        for one in (near, middle, far, end):
            one.setblocking(False)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4608)
        theirs = client_context(issuer, None, version).wrap_socket(
            end, server_hostname="localhost", do_handshake_on_connect=False
        )

        def carry() -> None:
            for source, sink, most in ((middle, far, 65_536), (far, middle, 1)):
                with suppress(BlockingIOError):
                    sink.send(source.recv(most))

        with theirs, TlsSocket(ServerTls(host.pair).context, near) as ours:
            shake_hands(ours, theirs, carry=carry)
            theirs.send(b"first")
            buffer = bytearray(10)
            while (got := ours.channel.receive(memoryview(buffer), 10)) < 0:
                carry()
            assert buffer[:got] == b"first"
