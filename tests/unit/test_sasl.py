"""SASL as a session sees it, without sockets: whose name is believed, when, and that nothing secret stays behind."""

import gc
from collections.abc import Sequence
from types import FunctionType, ModuleType
from typing import Any

import pytest

from proxy.core.auth.sasl import Login
from proxy.core.errors import CloseReason, SessionError
from proxy.core.session.throttle import renewal_ms
from quota.entity import Kind
from tests.support import sasl_tools as sasl
from tests.support import session_tools as tools
from tests.support.session_tools import from_broker, from_client, ledger, produce, response, session

SHOWN = {
    "PLAIN": sasl.PLAIN_STEPS,
    "OAUTHBEARER": sasl.OAUTH_STEPS,
    **dict.fromkeys(["SCRAM-SHA-256", "SCRAM-SHA-512"], sasl.SCRAM_STEPS),
}
NO_TOKEN = Login("alice")
GSSAPI_STEPS = (
    (b"\x60\x82ticket", b"\x60\x82reply"),
    (b"", b"\x05\x04\xff\xff layers"),
    (b"\x05\x04\x00\xff choice", b""),
)
"""With mutual authentication, as Kafka's clients ask for it; without it there is no reply but the layers."""
ONE_WAY_STEPS = (GSSAPI_STEPS[0][:1] + GSSAPI_STEPS[1][1:], GSSAPI_STEPS[2])
SECRETS = (b"pw-secret", b"cHJvb2Y=", b"c2ln")


def asks(token: bytes, version: int) -> bytes:
    """The client's message; version -1 is raw, after SaslHandshake v0."""
    return sasl.raw(token) if version < 0 else sasl.authenticate(token, version)


def replies(token: bytes, version: int) -> bytes:
    return sasl.raw(token) if version < 0 else sasl.authenticate_response(0, token, version)


@pytest.mark.parametrize("cut", tools.THREE_WAYS)
@pytest.mark.parametrize("version", [-1, 0, 1, 2])
@pytest.mark.parametrize("mechanism", sorted(SHOWN))
def test_a_login_is_told_once_the_broker_has_accepted_all_of_it(mechanism: str, version: int, cut: tools.Cut) -> None:
    one = session(ledger())
    answer = sasl.listen(one)
    *before, (token, reply) = SHOWN[mechanism]
    sasl.log_in(one, mechanism, before, version=version, cut=cut)
    from_client(one, asks(token, version), cut=cut)
    assert answer == []
    from_broker(one, replies(reply, version), cut=cut)
    assert answer == [NO_TOKEN]
    # and requests are requests again
    assert from_client(one, produce(9, 100), cut=cut) == produce(9, 100)
    assert from_broker(one, tools.produce_response(9), cut=cut) == tools.produce_response(9)


@pytest.mark.parametrize("version", [-1, 2])
def test_oauthbearers_challenge_has_error_0_and_is_no_success(version: int) -> None:
    one = session(ledger())
    answer = sasl.listen(one)
    sasl.log_in(one, "OAUTHBEARER", [(sasl.OAUTH_STEPS[0][0], b'{"status":"invalid_token"}')], version=version)
    assert answer == []
    from_client(one, asks(b"\1", version))
    # Even a broker that went on as if nothing had been would not make us believe the first message.
    from_broker(one, replies(b"", version))
    assert answer == []


@pytest.mark.parametrize(
    ("mechanism", "steps", "done"),
    [
        # A broker takes requests only when the security layer has been agreed on (SaslServerAuthenticator.COMPLETE).
        ("GSSAPI", GSSAPI_STEPS, True),
        ("GSSAPI", ONE_WAY_STEPS, True),
        ("OWN", GSSAPI_STEPS, True),
        ("GSSAPI", GSSAPI_STEPS[:0], False),
        ("GSSAPI", GSSAPI_STEPS[:1], False),
        ("GSSAPI", GSSAPI_STEPS[:2], False),
        ("GSSAPI", ONE_WAY_STEPS[:1], False),
        ("GSSAPI", [(GSSAPI_STEPS[0][0], b"")], False),
        ("SCRAM-SHA-256", [sasl.SCRAM_STEPS[0], (sasl.SCRAM_STEPS[1][0], b"")], False),
        ("SCRAM-SHA-256", [sasl.SCRAM_STEPS[0], (sasl.SCRAM_STEPS[1][0], b"e=invalid-proof")], False),
        ("SCRAM-SHA-256", [sasl.SCRAM_STEPS[0], (sasl.SCRAM_STEPS[1][0], b"r=abc,s=c2FsdA==,i=4096")], False),
    ],
)
def test_believes_login_after_last_answer(mechanism: str, steps: Sequence[tuple[bytes, bytes]], done: bool) -> None:
    one = session(ledger())
    answer = sasl.listen(one)
    sasl.log_in(one, mechanism, steps)
    assert set(answer) == ({Login(None)} if done else set())
    if done:
        assert from_client(one, produce(9, 100)) == produce(9, 100)
    else:
        assert one.state.auth.expected, "whatever comes now is before the login"


@pytest.mark.parametrize("steps", [1, 2])
def test_a_request_within_raw_gssapi_is_a_message_for_the_broker(steps: int) -> None:
    """As a broker takes it: it ends the connection, and no client is charged."""
    one = session(of := ledger(produce_rate=1000))
    answer = sasl.listen(one)
    sasl.log_in(one, "GSSAPI", GSSAPI_STEPS[:steps], version=-1)
    assert from_client(one, produce(9, 5000)) == produce(9, 5000)
    assert answer == []
    assert list(of.accounts()) == []


@pytest.mark.parametrize("cut", tools.THREE_WAYS)
def test_charges_every_request_behind_raw_gssapi(cut: tools.Cut) -> None:
    """The last message has no answer (SaslServerAuthenticator). The first request ends the raw messages; those behind
    it, in the same read, are requests as well."""
    one = session(of := ledger(produce_rate=1e9))
    one.user_of = lambda _login: "alice"
    sasl.log_in(one, "GSSAPI", GSSAPI_STEPS[:2], version=-1, cut=cut)
    last = sasl.raw(b"\x05\x04\x04\xff\x00\x0c\x00\x00 wrapped layer")
    assert from_client(one, last, cut=cut) == last
    assert tools.identities(of) == set()
    requests = [produce(7, 500), produce(8, 600), produce(9, 700)]
    assert from_client(one, b"".join(requests), cut=cut) == b"".join(requests)
    assert [pending.correlation_id for pending in one.exchange] == [7, 8, 9]
    assert tools.identities(of) == {("alice", "c")}
    assert of.account("alice", "c").meters[Kind.PRODUCE].amount == 500 + 600 + 700
    assert from_broker(one, tools.produce_response(7), cut=cut) == tools.produce_response(7)


def test_what_comes_with_a_login_waits_for_its_answer() -> None:
    """Otherwise requests sent along with the password would be charged to another user."""
    one = tools.identified(ledger(produce_rate=1e9))
    first = sasl.handshake("PLAIN")
    assert from_client(one, first + sasl.authenticate(sasl.PLAIN_STEPS[0][0]) + produce(3, 500)) == first
    assert one.must_wait
    from_broker(one, sasl.handshake_response())
    assert one.taken() == sasl.authenticate(sasl.PLAIN_STEPS[0][0])
    assert one.must_wait
    from_broker(one, sasl.authenticate_response())
    assert one.taken() == produce(3, 500)
    assert one.user == "alice"


def test_whoever_asks_for_logins_where_none_are_taken_is_charged() -> None:
    """A broker answers ILLEGAL_SASL_STATE from its request layer, which charges (KafkaApis)."""
    one = session(of := ledger(request_percentage=100.0))
    for number in range(10):
        from_client(one, sasl.handshake("PLAIN", correlation_id=number), 100.0 * number)
        from_broker(one, sasl.handshake_response(34, correlation_id=number), 100.0 * number + 50.0)
    account = of.account("ANONYMOUS", "c")
    assert (account.meters[Kind.REQUEST].charges, account.counted.by_api()[17]) == (9, 9)


def test_mute_pauses_for_reauthentication_and_resumes() -> None:
    """1000 B/s, so 10 000 B in the window's first second. 25 000 B come: (25 000 - 10 000) / 1000 = 15 s of mute, of
    which the session (10 s, the last 0.8 s left free) has room for 9.1."""
    one = session(ledger(produce_rate=1000, smooth=False))
    answer = sasl.listen(one)
    sasl.log_in(one, "PLAIN", sasl.PLAIN_STEPS, lifetime_ms=10_000)
    assert renewal_ms(10_000) == 800
    from_client(one, produce(3, 25_000), 100.0)
    assert one.mute_until_ms == 9200.0
    assert from_broker(one, tools.produce_response(3), 100.0) == tools.produce_response(3, 15_000)
    # What was sent before the client heard of it reaches the broker in time. The window is 10.4 s long by now:
    late = produce(4, 1000)
    assert from_client(one, late, 9500.0) == late
    assert one.mute_until_ms == 9200.0
    assert from_broker(one, tools.produce_response(4), 9500.0) == tools.produce_response(4, 25_000 + 1000 - 10_400)
    # and so does the new login, after which the mute goes on.
    sasl.log_in(one, "PLAIN", sasl.PLAIN_STEPS, lifetime_ms=60_000, now_ms=9900.0)
    assert answer == [NO_TOKEN, NO_TOKEN]
    assert one.mute_until_ms == 9500.0 + 15_600.0


def test_only_so_much_passes_before_the_end_of_a_session() -> None:
    """A client that does not log in again gains no more than twice what buffers may have held, 16 MiB: once 8 % before
    the end of its session (10 s), once half way between when these were through (9.6 s) and the end."""
    one = session(ledger(produce_rate=1000, smooth=False))
    sasl.log_in(one, "PLAIN", sasl.PLAIN_STEPS, lifetime_ms=10_000)
    for now_ms, muted_until_ms in ((9600.0, 9800.0), (9800.0, 10_000.0)):
        for number in range(17):
            assert one.mute_until_ms <= now_ms, number
            from_client(one, produce(number, 1024 * 1024), now_ms)
        assert one.mute_until_ms >= muted_until_ms, "and the second time much longer"
    assert one.mute_until_ms == 9800.0 + 30_000, "the longest mute that there is, as for any client"


def test_a_session_that_outlives_its_end_is_muted_like_any() -> None:
    one = session(ledger(produce_rate=1000, smooth=False))
    sasl.log_in(one, "PLAIN", sasl.PLAIN_STEPS, lifetime_ms=10_000)
    from_client(one, produce(3, 25_000), 9500.0)
    assert one.mute_until_ms == 9200.0
    assert from_client(one, produce(4, 1000), 10_500.0) == b"", "the mute that was put off"
    assert one.mute_until_ms == 9500.0 + 15_000.0


def test_the_last_part_of_a_session_is_free_of_mutes() -> None:
    # 8 %, at most half a minute; for a client that renews after 90 %
    lifetimes = (1000, 4000, 60_000, 600_000, 3_600_000)
    assert [renewal_ms(lifetime) for lifetime in lifetimes] == [80, 320, 4800, 30_000, 30_000]


@pytest.mark.parametrize("version", [-1, 2])
def test_messages_beyond_what_a_broker_takes_end_the_connection(version: int) -> None:
    one = session(ledger())
    sasl.log_in(one, "PLAIN", (), version=version)
    with pytest.raises(SessionError) as caught:
        from_client(one, asks(b"\0" * 600_000, version)[:20])
    assert (caught.value.reason, caught.value.kind) == (CloseReason.CLIENT_MALFORMED, "sasl_too_large")


def found_in_memory(*roots: Any) -> set[bytes]:
    """Which secrets are in any bytes, text or buffer that can be reached from these objects (through gc)."""
    seen: set[int] = set()
    stack: list[Any] = list(roots)
    found = set()
    while stack:
        thing = stack.pop()
        if id(thing) not in seen and not isinstance(thing, type | ModuleType | FunctionType):
            seen.add(id(thing))
            stack += gc.get_referents(thing)
            data = thing.encode(errors="replace") if isinstance(thing, str) else thing
            if isinstance(data, bytes | bytearray | memoryview):
                found |= {secret for secret in SECRETS if secret in bytes(data)}
    return found


@pytest.mark.parametrize("accepted", [True, False])
@pytest.mark.parametrize("version", [-1, 2])
@pytest.mark.parametrize("cut", tools.THREE_WAYS)
def test_nothing_secret_can_be_reached_afterwards(cut: tools.Cut, version: int, accepted: bool) -> None:
    one = session(of := ledger())
    buffer = bytearray(4096)  # one buffer for all reads, as the shell has

    def feed(data: bytes, *, client: bool = True) -> None:
        for part in cut(data):
            buffer[: len(part)] = part
            read = (memoryview(buffer), len(part), 0.0)
            one.carry_out(one.on_client_bytes(*read) if client else one.on_broker_bytes(*read, 0.0), 0.0)
            one.taken()
            one.seen()

    for mechanism, steps in (("SCRAM-SHA-256", sasl.SCRAM_STEPS), ("PLAIN", sasl.PLAIN_STEPS)):
        feed(sasl.handshake(mechanism, 0 if version < 0 else 1))
        feed(sasl.handshake_response(version=0 if version < 0 else 1), client=False)
        for token, reply in steps:
            feed(asks(token, version))
            if version >= 0 and not accepted:
                feed(sasl.authenticate_response(58, b"", version), client=False)
                break
            feed(replies(reply, version), client=False)
        assert found_in_memory(one, of, buffer) == set()
        if version < 0:
            one = session(of)
    assert found_in_memory(bytearray(b"x pw-secret")) == {b"pw-secret"}  # the search finds what is there


def test_session_tells_no_secret_in_its_errors() -> None:
    one = session(ledger())
    sasl.log_in(one, "PLAIN", ())
    from_client(one, sasl.authenticate(sasl.PLAIN_STEPS[0][0]))
    with pytest.raises(SessionError) as caught:
        from_broker(one, response(36, 2, 2, b"\0\0\0\x7fpw-secret"))
    assert "secret" not in str(caught.value) + repr(caught.value.__cause__)
