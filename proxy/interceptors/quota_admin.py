"""DescribeClientQuotas and AlterClientQuotas through the sidecar (KIP-546): Kafka's own tools see and set our quotas.

Describe shows what is enforced here. The broker decides whether the client may see it: it is sent the same question
with a filter that matches nothing, and only if it answers that without an error are the limits shown.
Alter is refused, passed to the broker, or applied here, as configured (docs/adr/0009-quota-administration.md).
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import cache, partial
from importlib import import_module
from typing import Any, Final, Literal, Protocol

from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from proxy.interceptors.intercept import AdminRequest, Answer, Forward, Outcome, Reply, Wait
from proxy.wire.apis import DESCRIBE_CLIENT_QUOTAS
from proxy.wire.frames import WireError
from proxy.wire.lengths import check_lengths
from quota.admin import (
    CLUSTER_AUTHORIZATION_FAILED,
    KAFKA_STORAGE_ERROR,
    POLICY_VIOLATION,
    AdminError,
    Changes,
    Component,
    Entity,
    Op,
    Quotas,
    Validated,
    entity_of,
    select,
    validate,
)

AlterRule = Literal["deny", "forward", "apply"]

_NO_TIME: Final = timedelta(0)
MAX_ANSWERS: Final = 16
"""DescribeClientQuotas answers, kept until the limits change. Encoding all of 10 000 limits takes nearly 0.1 s: do it
once, not for every request."""


class QuotaAuthority(Protocol):
    """Knows the limits in force and can change them; one for all connections."""

    @property
    def rule(self) -> AlterRule:
        """What AlterClientQuotas does."""

    @property
    def managed(self) -> str:
        """Where quotas are managed; completes the sentence "quotas are managed …"."""

    def quotas(self) -> Quotas:
        """The limits in force: the same object until they change."""

    def may_alter(self, user: str) -> bool:
        """Whether this user may alter quotas (rule "apply")."""

    def apply(self, user: str, changes: Changes, done: Callable[[str | None], None]) -> None:
        """Store changes that are valid and put them in force; then `done(None)`, or `done(reason)` if nothing changed.

        `done` is called once, in the event loop, later.
        """

    def altered_at_the_broker(self) -> None:
        """The broker has answered a forwarded AlterClientQuotas request."""


class QuotaAdmin:
    """The interceptor of both APIs."""

    def __init__(self, authority: QuotaAuthority) -> None:
        self._authority = authority
        self._answered: Quotas | None = None
        """The limits that the cached answers describe."""
        self._answers: dict[tuple[int, bool, tuple[Component, ...]], bytes] = {}
        self.requests: Counter[str] = Counter()
        """AlterClientQuotas by outcome: denied, unauthorized, invalid, validated, applied, failed, forwarded."""

    def request(self, request: AdminRequest, now_ms: float) -> Outcome:
        """Inspect a request of either API. Raises WireError if it cannot be read."""
        version = request.api_version
        if request.api_key == DESCRIBE_CLIENT_QUOTAS:
            message = _read(request.body, "request_malformed", "describe_client_quotas", version, "request")
            probe = _classes("describe_client_quotas", version, "request").DescribeClientQuotasRequest
            nothing = _write(probe(components=(), strict=True))
            return Forward(nothing, on_response=partial(self._describe, message, version))
        return self._alter(request)

    # ---- describe ---------------------------------------------------------------------------------------------------

    def _describe(self, request: Any, version: int, answer: bytes, now_ms: float) -> Reply:
        """The broker has answered the question that matches nothing."""
        response = _read(answer, "broker_malformed", "describe_client_quotas", version, "response")
        if response.error_code is not ErrorCode.none:
            return Reply()  # the broker's refusal
        components = tuple(Component(one.entity_type, one.match_type, one.match) for one in request.components or ())
        try:
            return Reply(self._described(version, request.strict, components))
        except AdminError as error:
            return Reply(describe_response(version, None, error))

    def _described(self, version: int, strict: bool, components: tuple[Component, ...]) -> bytes:
        quotas = self._authority.quotas()
        if quotas is not self._answered:
            self._answered = quotas
            self._answers.clear()
        question = (version, strict, components)
        answer = self._answers.get(question)
        if answer is None:
            answer = describe_response(version, select(quotas, components, strict=strict))
            if len(self._answers) >= MAX_ANSWERS:
                del self._answers[next(iter(self._answers))]
            self._answers[question] = answer
        return answer

    # ---- alter ------------------------------------------------------------------------------------------------------

    def _alter(self, request: AdminRequest) -> Outcome:
        authority, version = self._authority, request.api_version
        message = _read(request.body, "request_malformed", "alter_client_quotas", version, "request")
        rule = authority.rule
        if rule == "forward":
            self.requests["forwarded"] += 1
            return Forward(on_response=self._forwarded)
        alterations = [
            (
                entity_of((part.entity_type, part.entity_name) for part in entry.entity or ()),
                [Op(op.key, None if op.remove else op.value) for op in entry.ops or ()],
            )
            for entry in message.entries or ()
        ]
        if rule == "deny":
            self.requests["denied"] += 1
            denied = AdminError(
                POLICY_VIOLATION,
                f"quotas cannot be altered through this kquota sidecar: they are managed {authority.managed}",
            )
            return Answer(_refusal(version, alterations, denied))
        if not authority.may_alter(request.user):
            self.requests["unauthorized"] += 1
            text = f"user {request.user} may not alter quotas through this kquota sidecar"
            return Answer(_refusal(version, alterations, AdminError(CLUSTER_AUTHORIZATION_FAILED, text)))
        verdicts = validate(alterations)
        changes = {one.entity: one.changes for one in verdicts if one.changes}
        if message.validate_only or not changes:
            self.requests["validated" if message.validate_only else "invalid"] += 1
            return Answer(alter_response(version, verdicts))
        return Wait(partial(self._apply, request.user, changes, verdicts, version))

    def _apply(
        self,
        user: str,
        changes: Changes,
        verdicts: Sequence[Validated],
        version: int,
        decide: Callable[[Outcome], None],
    ) -> None:
        def done(reason: str | None) -> None:
            self.requests["applied" if reason is None else "failed"] += 1
            failed = None if reason is None else AdminError(KAFKA_STORAGE_ERROR, f"nothing was changed: {reason}")
            decide(Answer(alter_response(version, verdicts, failed)))

        self._authority.apply(user, changes, done)

    def _forwarded(self, answer: bytes, now_ms: float) -> Reply:
        self._authority.altered_at_the_broker()
        return Reply()


def describe_request(version: int) -> bytes:
    """The body of a DescribeClientQuotas request for everything."""
    return _write(
        _classes("describe_client_quotas", version, "request").DescribeClientQuotasRequest(components=(), strict=False)
    )


def read_described(version: int, body: bytes) -> dict[Entity, dict[str, float]]:
    """The limits in a broker's answer. Raises WireError if it cannot be parsed, AdminError if the broker refuses."""
    response = _read(body, "broker_malformed", "describe_client_quotas", version, "response")
    if response.error_code is not ErrorCode.none:
        raise AdminError(response.error_code.value, f"{response.error_code.name}: {response.error_message or ''}")
    return {
        entity_of((part.entity_type, part.entity_name) for part in entry.entity): {
            value.key: value.value for value in entry.values
        }
        for entry in response.entries or ()
    }


def describe_response(
    version: int, found: Iterable[tuple[Entity, Mapping[str, float]]] | None, error: AdminError | None = None
) -> bytes:
    """The body of a DescribeClientQuotas response; `found` is None beside an error, as in a broker's."""
    kinds = _classes("describe_client_quotas", version, "response")
    entries = found and tuple(
        kinds.EntryData(
            entity=tuple(kinds.EntityData(entity_type=kind, entity_name=name) for kind, name in entity),
            values=tuple(kinds.ValueData(key=key, value=value) for key, value in limits.items()),
        )
        for entity, limits in found
    )
    return _write(
        kinds.DescribeClientQuotasResponse(
            throttle_time=_NO_TIME,
            error_code=ErrorCode(0 if error is None else error.code),
            error_message="" if error is None else error.message,
            entries=entries if found is None else tuple(entries or ()),
        )
    )


def alter_response(version: int, verdicts: Iterable[Validated], failed: AdminError | None = None) -> bytes:
    """The body of an AlterClientQuotas response. `failed`: applying the valid alterations failed."""
    kinds = _classes("alter_client_quotas", version, "response")
    entries = []
    for one in verdicts:
        error = one.error or (failed if one.changes else None)
        entries.append(
            kinds.EntryData(
                error_code=ErrorCode(0 if error is None else error.code),
                error_message=None if error is None else error.message,
                entity=tuple(kinds.EntityData(entity_type=kind, entity_name=name) for kind, name in one.entity),
            )
        )
    return _write(kinds.AlterClientQuotasResponse(throttle_time=_NO_TIME, entries=tuple(entries)))


def _refusal(version: int, alterations: Iterable[tuple[Entity, Sequence[Op]]], error: AdminError) -> bytes:
    """Every entity once, with the same error."""
    entities = dict.fromkeys(entity for entity, _ in alterations)
    return alter_response(version, [Validated(entity, {}, error) for entity in entities])


# ---- kio ------------------------------------------------------------------------------------------------------------

_MESSAGES: Final = {
    ("describe_client_quotas", "request"): "DescribeClientQuotasRequest",
    ("describe_client_quotas", "response"): "DescribeClientQuotasResponse",
    ("alter_client_quotas", "request"): "AlterClientQuotasRequest",
    ("alter_client_quotas", "response"): "AlterClientQuotasResponse",
}


@cache
def _classes(api: str, version: int, kind: str) -> Any:
    """kio's module of a message; imported on the first administrator's request."""
    return import_module(f"kio.schema.{api}.v{version}.{kind}")


def _read(body: bytes, reason: str, api: str, version: int, kind: str) -> Any:
    """Decode a whole message. Raises WireError (`reason`) if it is malformed or has trailing bytes."""
    name = _MESSAGES[api, kind]
    cls = getattr(_classes(api, version, kind), name)
    try:
        check_lengths(cls, body)
        message, _ = entity_reader(cls)(body, 0)
    except Exception as error:  # kio raises many kinds
        raise WireError(reason, f"{name} version {version} cannot be read: {error}") from error
    return message


def _write(message: Any) -> bytes:
    sink = io.BytesIO()
    entity_writer(type(message))(sink, message)
    return sink.getvalue()
