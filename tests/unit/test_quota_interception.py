"""DescribeClientQuotas and AlterClientQuotas at the session, in both versions: what broker and client get to see."""

from datetime import timedelta
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from proxy.core.errors import CloseReason, SessionError
from proxy.core.interceptors.quota_admin import MAX_ANSWERS, QuotaAdmin, describe_request, read_described
from quota.admin import CLUSTER_AUTHORIZATION_FAILED, AdminError, Entity, enforced
from quota.table import Entry, QuotaTable
from tests.support import session_tools as tools
from tests.support.session_tools import from_broker, from_client, ledger, request, response, session
from tests.support.wire_tools import kafka_python_class, kafka_python_message, kio_read

DESCRIBE, ALTER = 48, 49
ALICE: Entity = (("user", "alice"),)
PRODUCE = "producer_byte_rate"
versions = pytest.mark.parametrize("version", [0, 1])
HEAD = [len(response(DESCRIBE, version, 1, b"")) for version in (0, 1)]


def under(authority: tools.Authority) -> tuple[tools.Driven, QuotaAdmin]:
    admin = QuotaAdmin(authority)
    return session(ledger(), interceptors={DESCRIBE: admin, ALTER: admin}), admin


def body(api_key: int, kind: str, version: int, **fields: Any) -> bytes:
    """As kafka-python encodes it."""
    return bytes(kafka_python_message(kafka_python_class(api_key, kind), version, **fields).encode(version=version))


def describing(version: int, *components: tuple[str, int, str | None], strict: bool = False) -> bytes:
    parts = [{"entity_type": a, "match_type": b, "match": c} for a, b, c in components]
    return body(DESCRIBE, "request", version, components=parts, strict=strict)


def described(version: int, error: int = 0, throttle_ms: int = 0, message: str = "") -> bytes:
    fields = {"throttle_time_ms": throttle_ms, "error_code": error, "error_message": message}
    return body(DESCRIBE, "response", version, **fields, entries=None if error else [])


def altering(version: int, *entries: tuple[Entity, dict[str, float | None]]) -> bytes:
    parts = [
        {
            "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
            "ops": [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in ops.items()],
        }
        for entity, ops in entries
    ]
    return body(ALTER, "request", version, entries=parts, validate_only=False)


def read(api_key: int, version: int, frame: bytes) -> Any:
    """The message in the only response frame, which answers correlation id 1."""
    assert frame[4:8] == b"\0\0\0\1"
    return kio_read(frame, api_key, version)


def altered(version: int, frame: bytes) -> list[tuple[int, str | None, Entity]]:
    return [
        (one.error_code.value, one.error_message, tuple((part.entity_type, part.entity_name) for part in one.entity))
        for one in read(ALTER, version, frame).entries
    ]


@versions
@pytest.mark.parametrize("cut", tools.THREE_WAYS)
def test_describe_shows_enforced_quotas_once_permitted(version: int, cut: tools.Cut) -> None:
    authority = tools.Authority()
    one, _ = under(authority)
    asked = from_client(one, request(DESCRIBE, version, 1, describing(version, ("user", 0, "alice"))), cut=cut)
    assert asked == request(DESCRIBE, version, 1, describing(version, strict=True))  # finds nothing, costs nothing
    answer = from_broker(one, response(DESCRIBE, version, 1, described(version, throttle_ms=7)), cut=cut)
    message = read(DESCRIBE, version, answer)
    assert (message.throttle_time, message.error_code, message.error_message) == (timedelta(milliseconds=7), 0, "")
    assert read_described(version, answer[HEAD[version] :]) == {ALICE: {PRODUCE: 1000.0}}
    from_client(one, request(DESCRIBE, version, 1, describe_request(version)), cut=cut)
    answer = from_broker(one, response(DESCRIBE, version, 1, described(version)), cut=cut)
    assert read_described(version, answer[HEAD[version] :]) == dict(enforced(authority.table))


@versions
def test_forbidden_describe_gets_the_brokers_refusal(version: int) -> None:
    one, _ = under(tools.Authority())
    from_client(one, request(DESCRIBE, version, 1, describing(version)))
    refusal = response(DESCRIBE, version, 1, described(version, CLUSTER_AUTHORIZATION_FAILED, message="no"))
    assert from_broker(one, refusal) == refusal
    with pytest.raises(AdminError) as caught:
        read_described(version, refusal[HEAD[version] :])
    assert caught.value.code == CLUSTER_AUTHORIZATION_FAILED


@versions
def test_deny_refuses_each_entity_with_reason(version: int) -> None:
    one, admin = under(tools.Authority())
    bob: Entity = (("client-id", "c"), ("user", "bob"))
    body = altering(version, (ALICE, {PRODUCE: 1.0}), (bob, {PRODUCE: 1.0}), (ALICE, {PRODUCE: 2.0}))
    assert from_client(one, request(ALTER, version, 1, body)) == b""
    text = "quotas cannot be altered through this kquota sidecar: they are managed in the file /etc/kquota.yaml"
    assert altered(version, one.seen()) == [(44, text, ALICE), (44, text, bob)]
    assert admin.requests == {"denied": 1}


@versions
def test_forward_passes_untouched_and_source_looks_again(version: int) -> None:
    authority = tools.Authority("forward")
    one, admin = under(authority)
    sent = request(ALTER, version, 1, altering(version, ((("nonsense", ""),), {"bad": -1.0})))
    assert from_client(one, sent) == sent
    answer = response(ALTER, version, 1, b"\0\0\0\0" + b"whatever the broker says")
    assert from_broker(one, answer) == answer
    assert (authority.told_of_the_broker, admin.requests) == (1, {"forwarded": 1})


@versions
def test_apply_is_for_the_listed_users_only(version: int) -> None:
    authority = tools.Authority("apply", principals=["alice"])
    one, admin = under(authority)
    from_client(one, request(ALTER, version, 1, altering(version, (ALICE, {PRODUCE: 1.0}))))
    text = "user ANONYMOUS may not alter quotas through this kquota sidecar"
    assert altered(version, one.seen()) == [(CLUSTER_AUTHORIZATION_FAILED, text, ALICE)]
    assert (authority.applied, admin.requests) == ([], {"unauthorized": 1})


@versions
@pytest.mark.parametrize("cut", tools.THREE_WAYS)
@pytest.mark.parametrize("failed", [None, "/o.yaml cannot be written: No space left on device"])
def test_apply_answers_when_it_is_done(version: int, cut: tools.Cut, failed: str | None) -> None:
    authority = tools.Authority("apply")
    one, admin = under(authority)
    bad: Entity = (("user", ""),)
    body = altering(version, (ALICE, {PRODUCE: 1.0, "consumer_byte_rate": None}), (bad, {PRODUCE: 1.0}))
    assert from_client(one, request(ALTER, version, 1, body), cut=cut) == b""
    assert authority.applied == [("ANONYMOUS", {ALICE: {PRODUCE: 1.0, "consumer_byte_rate": None}})]
    assert (one.must_wait, one.seen()) == (True, b"")
    authority.done[0](failed)
    assert tools.resumed(one, 1.0) == b""
    assert altered(version, one.seen()) == [
        (56, f"nothing was changed: {failed}", ALICE) if failed else (0, None, ALICE),
        (42, "expected a name or the default, got an empty user", bad),
    ]
    assert admin.requests == {"failed" if failed else "applied": 1}


@versions
@pytest.mark.parametrize("api", [DESCRIBE, ALTER])
def test_unreadable_request_ends_the_connection(version: int, api: int) -> None:
    good = describing(version, ("user", 0, "a")) if api == DESCRIBE else altering(version, (ALICE, {PRODUCE: 1.0}))
    bad = [b"", good[:-1], good[:-4], b"\xff" * 30]
    if version and api == ALTER:  # unknown tagged fields might mean that something else is to be altered
        bad.append(good[:-1] + b"\x01\x05\x02hi")
    for body in bad:
        with pytest.raises(SessionError) as caught:
            from_client(under(tools.Authority("apply"))[0], request(api, version, 1, body))
        assert (caught.value.reason, caught.value.kind) == (CloseReason.CLIENT_MALFORMED, "request_malformed")
    one, _ = under(tools.Authority())
    from_client(one, request(DESCRIBE, version, 1, describing(version)))
    with pytest.raises(SessionError) as caught:
        from_broker(one, response(DESCRIBE, version, 1, b"\0\0\0\0\0"))
    assert caught.value.reason is CloseReason.BROKER_MALFORMED


@versions
def test_answers_are_kept_until_the_limits_change_and_never_many(version: int) -> None:
    authority = tools.Authority()
    one, admin = under(authority)

    def shown(*components: tuple[str, int, str | None]) -> int:
        from_client(one, request(DESCRIBE, version, 1, describing(version, *components)))
        answer = from_broker(one, response(DESCRIBE, version, 1, described(version)))
        return len(read(DESCRIBE, version, answer).entries)

    assert [shown(), shown(), shown(("user", 2, None)), shown()] == [2, 2, 1, 2]
    authority.table = QuotaTable([Entry("alice", producer_byte_rate=2.0)])
    assert [shown(), shown()] == [1, 1]
    for number in range(3 * MAX_ANSWERS):
        assert shown(("user", 0, f"user {number}")) == 0
    assert len(admin._answers) == MAX_ANSWERS


@versions
def test_the_longest_names_fit_into_complaints_about_them(version: int) -> None:
    long, longest = "k" * 32_767, (("user", "u" * 32_767),)
    one, _ = under(tools.Authority("apply"))
    entries: list[Any] = [(ALICE, {long: 1.0}), (longest, {PRODUCE: -1.0}), (longest, {}), ((("t" * 32_767, ""),), {})]
    from_client(one, request(ALTER, version, 1, altering(version, *entries)))
    assert [(code, len(text or "")) for code, text, _ in altered(version, one.seen())] == [(42, 500)] * 3
    one, _ = under(tools.Authority())
    from_client(one, request(DESCRIBE, version, 1, describing(version, (long, 0, "x"))))
    answer = from_broker(one, response(DESCRIBE, version, 1, described(version)))
    message = read(DESCRIBE, version, answer)
    assert (message.error_code, len(message.error_message)) == (ErrorCode.unsupported_version, 500)
