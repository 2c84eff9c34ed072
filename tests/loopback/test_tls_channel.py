"""Bytes of an established TLS connection, by OpenSSL itself and by Python's `ssl`: the same contract for both."""

import random
import select
import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import pytest

from proxy.net.tls.channel import TlsSocket
from tests.support.certificates import Authority, Issued
from tests.support.openssl_peer import TLS1_2, Peer, PeerError, leave_error, queued_error
from tests.support.tls_pairs import IMPLEMENTATIONS, Contexts, Pair, contexts, over_tcp, pair, shake_hands


@pytest.fixture(params=IMPLEMENTATIONS)
def by(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def both(issuer: Authority, host: Issued) -> Contexts:
    return contexts(issuer, host)


@pytest.fixture
def made(both: Contexts, by: str) -> Iterator[Pair]:
    with pair(both, by) as found:
        yield found


def read(ours: TlsSocket, most: int = 65_536) -> bytes | None:
    buffer = bytearray(most)
    got = ours.channel.receive(memoryview(buffer), most)
    return None if got < 0 else bytes(buffer[:got])


def send(ours: TlsSocket, data: bytes) -> int:
    return ours.channel.send(data, 0, len(data), False)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])
def test_full_sockets_and_cut_records_change_no_byte(both: Contexts, by: str, version: ssl.TLSVersion) -> None:
    """Both directions at once, sockets of a few kilobytes, records cut anywhere, reads and writes of any size."""
    chance = random.Random(1)
    there, back = chance.randbytes(1_400_000), chance.randbytes(1_400_000)
    heard_there, heard_back = bytearray(), bytearray()
    to_theirs, to_ours = there, back
    full = empty = 0
    with pair(both, by, buffer_bytes=4608, version=version) as made:
        assert made.theirs.version() == ("TLSv1.2" if version is ssl.TLSVersion.TLSv1_2 else "TLSv1.3")
        attempt: bytes = b""
        while len(heard_there) < len(there) or len(heard_back) < len(back):
            if to_theirs:
                # What was not taken comes again before anything else, maybe with more behind it.
                attempt = to_theirs[: max(len(attempt), chance.choice((1, 100, 16_384, 16_385, 200_000)))]
                sent = send(made.ours, attempt)
                full += not sent
                to_theirs, attempt = to_theirs[sent:], attempt[sent:]
            if to_ours:
                with suppress(ssl.SSLWantWriteError, ssl.SSLWantReadError):
                    to_ours = to_ours[made.theirs.send(to_ours[:8000]) :]
            for _ in range(chance.randint(0, 3)):
                made.carry(chance, 5000)
            heard_there += made.all_of_theirs()
            most = chance.choice((1, 50, 4096, 65_536))
            got = read(made.ours, most)
            if got is None:
                empty += 1
            else:
                assert 0 < len(got) <= most
                heard_back += got
        assert (bytes(heard_there), bytes(heard_back)) == (there, back)
        assert min(full, empty) > 10  # or it was no storm
        made.ours.shutdown(socket.SHUT_WR)
        made.settle()
        assert made.theirs.recv(1) == b""  # close_notify: an end, not a cut


def test_a_short_read_has_taken_all_there_was(made: Pair) -> None:
    """The promise that edge-triggered watching needs; and what a small read leaves inside counts as unread."""
    for size in (1, 100, 16_384, 5):  # records
        made.theirs.send(b"x" * size)
    made.settle()
    assert made.ours.unread_bytes() > 16_489
    assert len(read(made.ours, 10) or b"") == 10
    assert made.ours.unread_bytes() >= 16_480
    assert len(read(made.ours) or b"") == 16_480  # over the borders of records
    assert read(made.ours) is None
    assert made.ours.unread_bytes() == 0


def test_the_end_comes_after_what_came_before_it(made: Pair) -> None:
    """A goodbye (close_notify) in the same breath as data: data first; then the reader is woken once more."""
    with select.epoll() as poller:
        made.theirs.send(b"last words")
        with suppress(ssl.SSLWantReadError):
            made.theirs.unwrap()
        made.settle()
        poller.register(made.ours, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)
        assert poller.poll(0)
        assert read(made.ours) == b"last words"
        assert poller.poll(0)  # the connection itself is still open
        assert read(made.ours) == b""


@pytest.mark.parametrize("inside", [False, True], ids=["between records", "inside a record"])
def test_end_without_close_notify_is_an_end(made: Pair, inside: bool) -> None:
    made.theirs.send(b"data")
    record = made.far.recv(65_536)
    made.near.send(record[:-3] if inside else record)
    made.near.shutdown(socket.SHUT_WR)
    assert read(made.ours) == (b"" if inside else b"data")
    assert read(made.ours) == b""


def test_reset_is_reported_as_reset(both: Contexts, by: str) -> None:
    with over_tcp(both, by) as (ours, theirs):
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        theirs.close()
        select.select([ours], (), (), 5)
        with pytest.raises(ConnectionResetError):
            read(ours)


@pytest.mark.parametrize("how", ["flipped", "too long", "plain"])
def test_a_hostile_record_ends_its_connection_and_no_other(both: Contexts, by: str, how: str) -> None:
    with pair(both, by) as made, pair(both, by) as other:
        made.theirs.send(b"x" * 100)
        record = bytearray(made.far.recv(65_536))
        if how == "flipped":
            record[50] ^= 1
        elif how == "too long":
            record[3:5] = b"\xff\xff"
            record += bytes(70_000)
        else:
            record[:] = b"GET / HTTP/1.1\r\n\r\n"
        made.near.send(record)
        with pytest.raises(ssl.SSLError) as failed:
            read(made.ours)
        assert failed.value.reason
        assert failed.value.reason.replace("_", " ").lower() in str(failed.value).replace("_", " ").lower()
        # The peer gets an alert, and this thread's other connections know nothing of it.
        made.settle()
        with pytest.raises(ssl.SSLError, match="alert"):
            made.theirs.recv(1)
        assert read(other.ours) is None
        other.theirs.send(b"fine")
        other.settle()
        assert read(other.ours) == b"fine"


def test_an_end_is_no_error_of_this_threads_next_connection(both: Contexts, by: str) -> None:
    """OpenSSL's queue of errors is the thread's: who leaves one there makes the next one's "would block" a failure."""
    with pair(both, by) as made:
        made.theirs.send(b"data")
        made.near.send(made.far.recv(65_536) + b"\x17\x03\x03\x00\x20" + bytes(32))  # the last one is forged
        assert read(made.ours) == b"data"
        assert not queued_error()
    if by != "python":  # which takes another's error for its own
        with pair(both, by) as made:
            leave_error()
            assert queued_error()
            assert read(made.ours) is None


@contextmanager
def beside_peer(both: Contexts, by: str, **more: Any) -> Iterator[tuple[TlsSocket, Peer]]:
    """Our end and OpenSSL's client, before the handshake, with small buffers."""
    near, far = socket.socketpair()
    for one in (near, far):
        one.setblocking(False)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4608)
    with TlsSocket(both.ours[by], near) as ours, closing(Peer(far, **more)) as peer:
        yield ours, peer


def test_keys_are_updated_while_data_goes_both_ways(both: Contexts, by: str) -> None:
    """TLS 1.3: the answer to a peer's KeyUpdate is written while we read."""
    with beside_peer(both, by) as (ours, peer):
        shake_hands(ours, peer)
        rest = sent = b"".join(b"answer %d " % number * 100 for number in range(50))
        heard = b""
        asked = 0
        while len(heard) < len(sent):
            if asked < 50:
                asked += 1
                assert peer.update_keys()
                assert peer.send(b"%d " % asked)
                assert read(ours) == b"%d " % asked
            rest = rest[send(ours, rest) :]
            heard += peer.recv() or b""
        assert heard == sent


def test_renegotiation_is_refused(both: Contexts, by: str) -> None:
    with beside_peer(both, by, version=TLS1_2) as (ours, peer):
        shake_hands(ours, peer)
        assert peer.renegotiate()
        with pytest.raises(ssl.SSLWantReadError):
            peer.do_handshake()
        assert read(ours) is None
        with pytest.raises(PeerError, match="no renegotiation"):
            peer.do_handshake()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # what Python's ssl does with it
@pytest.mark.parametrize("version", [TLS1_2, 0], ids=["1.2", "1.3"])
def test_name_that_a_client_asks_for(both: Contexts, by: str, version: int) -> None:
    with beside_peer(both, by, version=version, name=b"kafka-0.test") as (ours, peer):
        shake_hands(ours, peer)
        assert ours.channel.server_name == "kafka-0.test"
    with beside_peer(both, by, version=version, name="käse".encode()) as (ours, peer):
        with pytest.raises(ssl.SSLError, match="CALLBACK_FAILED"):
            shake_hands(ours, peer)
        with pytest.raises(PeerError, match="tlsv1"):  # an alert
            peer.do_handshake()


def test_what_is_encrypted_is_sent_before_anything_else(both: Contexts, by: str) -> None:
    with pair(both, by, buffer_bytes=4608) as made:
        data = random.Random(2).randbytes(50_000)
        assert send(made.ours, data) == 0

        def send_others() -> None:
            for _ in range(200):  # fewer bytes than have been encrypted: another caller's, who has to wait
                made.carry()
                made.all_of_theirs()
                send(made.ours, b"others")

        with pytest.raises(ValueError, match=r"expected at least the \d+ bytes that were encrypted before"):
            send_others()
