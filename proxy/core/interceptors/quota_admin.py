"""DescribeClientQuotas and AlterClientQuotas through the sidecar (KIP-546): Kafka's own tools see and set our quotas.

Describe shows what is enforced here. The broker decides whether the client may see it: it is sent the same question
with a filter that matches nothing, and only if it answers that without an error are the limits shown.
Alter is refused, passed to the broker, or applied here, as configured (docs/adr/0009-quota-administration.md).
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, Protocol, TypeAlias

from kio.schema.errors import ErrorCode
from kio.serial import entity_reader

from proxy.core.interceptors.intercept import AdminRequest, Answer, Decision, Forward, Outcome, Reply, Wait, Work
from proxy.core.wire.apis import DESCRIBE_CLIENT_QUOTAS
from proxy.core.wire.bodies import class_of, encoded, readable
from proxy.core.wire.frames import WireError
from proxy.core.wire.lengths import SLICE, Found, Slices, array_of, array_start, check_lengths, check_part, walk
from proxy.core.wire.primitives import INT16, array_head, compact_string, string
from quota.admin import (
    CLUSTER_AUTHORIZATION_FAILED,
    INVALID_REQUEST,
    KAFKA_STORAGE_ERROR,
    POLICY_VIOLATION,
    AdminError,
    Changes,
    Component,
    Entity,
    Op,
    Validated,
    enforced,
    entity_of,
    selection,
    validate_one,
)
from quota.ledger import Account
from quota.table import QuotaTable

AlterRule = Literal["deny", "forward", "apply"]

_NO_THROTTLE: Final = bytes(4)
_ERROR_AT: Final = 4
"""Where the error of a DescribeClientQuotas response is: behind the throttle time."""
_FLOAT64: Final = struct.Struct(">d")
MAX_ANSWERS: Final = 16
"""DescribeClientQuotas answers, kept until the limits change."""
MAX_COMPONENTS: Final = 4
"""Components of a filter that are read: there are three types, and each may occur once."""
MAX_ALTERED: Final = 1000
"""Entries of one AlterClientQuotas request that are validated. They are decoded and validated in slices; the answer is
made at once, in up to 5 µs for each."""
MAX_OPS: Final = 10
"""Operations of one such entry. Each key may occur once, and there are five."""
MAX_TAGS: Final = 100
"""Tagged fields of a filter, which are visited in one slice. As in a request's header."""
_TOO_LARGE: Final = AdminError(
    INVALID_REQUEST,
    f"expected at most {MAX_ALTERED} entries, each with at most {MAX_OPS} operations: split the request",
)
Question: TypeAlias = tuple[int, bool, tuple[Component, ...]]
"""Version, strict, and components of a DescribeClientQuotas request."""


class QuotaAuthority(Protocol):
    """Knows the limits in force and can change them; one for all connections."""

    table: QuotaTable
    """The limits in force: the same object until they change."""

    @property
    def rule(self) -> AlterRule:
        """What AlterClientQuotas does."""

    @property
    @abstractmethod
    def managed(self) -> str:
        """Where quotas are managed; completes the sentence "quotas are managed …"."""

    def may_alter(self, user: str) -> bool:
        """Whether this user may alter quotas (rule "apply")."""

    @abstractmethod
    def apply(self, user: str, changes: Changes, done: Callable[[str | None], None]) -> None:
        """Store changes that are valid and put them in force; then `done(None)`, or `done(reason)` if nothing changed.

        `done` is called once, in the event loop, later.
        """

    @abstractmethod
    def altered_at_the_broker(self) -> None:
        """The broker has answered a forwarded AlterClientQuotas request."""


class QuotaAdmin:
    """The interceptor of both APIs."""

    def __init__(self, authority: QuotaAuthority) -> None:
        self._authority = authority
        self._answered: QuotaTable | None = None
        """The limits that the cached answers describe."""
        self._answers: dict[Question, bytes] = {}
        self.requests: Counter[str] = Counter()
        """AlterClientQuotas by outcome: denied, unauthorized, invalid, validated, applied, failed, forwarded."""

    def wants(self, _api_key: int, _account: Account) -> bool:
        """See :meth:`proxy.core.interceptors.intercept.Interceptor.wants`."""
        return True

    def request(self, request: AdminRequest, now_ms: float) -> Outcome:
        """Inspect a request of either API. Raises WireError if it cannot be read."""
        if request.api_key == DESCRIBE_CLIENT_QUOTAS:
            return self._ask(request)
        if self._authority.rule == "forward":
            self.requests["forwarded"] += 1
            return Forward(on_response=self._forwarded)
        return Work(self._alter(request, now_ms))

    # ---- describe ---------------------------------------------------------------------------------------------------

    def _ask(self, request: AdminRequest) -> Outcome:
        version = request.api_version
        cls = class_of("describe_client_quotas", version, "request")
        with readable("request_malformed", cls):
            components, strict = _components(cls, request.body)
        nothing = encoded(cls(components=(), strict=True))
        return Forward(nothing, on_response=partial(self._describe, version, strict, components))

    def _describe(
        self, version: int, strict: bool, components: tuple[Component, ...], answer: bytes, now_ms: float
    ) -> Reply | Work[Reply]:
        """The broker has answered the question that matches nothing."""
        if len(answer) < _ERROR_AT + 2:
            raise WireError(
                "broker_malformed", f"DescribeClientQuotasResponse version {version} cannot be read: truncated"
            )
        if INT16.unpack_from(answer, _ERROR_AT)[0] != ErrorCode.none:
            return Reply()  # the broker's refusal
        table = self._authority.table
        if table is not self._answered:
            self._answered = table
            self._answers.clear()
        question = (version, strict, components)
        known = self._answers.get(question)
        return Reply(known) if known is not None else Work(self._described(table, question))

    def _described(self, table: QuotaTable, question: Question) -> Slices[Reply]:
        version, strict, components = question
        try:
            chosen = selection(components, strict=strict)
        except AdminError as error:
            return Reply(
                _NO_THROTTLE + _described_head(version, error) + array_head(-1, bool(version)) + _tags(version)
            )
        found = []
        for number, (entity, limits) in enumerate(enforced(table), 1):
            if chosen(entity):
                found.append(_described_entry(version, entity, limits))
            if number % SLICE == 0:
                yield
        answer = _NO_THROTTLE + _described_head(version) + _array(version, found)
        if table is self._answered:
            if len(self._answers) >= MAX_ANSWERS:
                del self._answers[next(iter(self._answers))]
            self._answers[question] = answer
        return Reply(answer)

    # ---- alter ------------------------------------------------------------------------------------------------------

    def _alter(self, request: AdminRequest, now_ms: float) -> Slices[Decision]:
        version = request.api_version
        cls, body = class_of("alter_client_quotas", version, "request"), request.body
        _, entry_class = array_of(cls)
        refusal, outcome = self._refusal(request.user)
        entities: dict[bytes, None] = {}
        entries: list[bytes] = []

        def take(entry: Found) -> None:
            entities[entry.part("entity")] = None
            most = max(entry.count("entity"), entry.count("ops"))
            if refusal is None and len(entries) < MAX_ALTERED and most <= MAX_OPS:
                entries.append(entry.raw)

        with readable("request_malformed", cls):
            message, now_ms = yield from walk(cls, body, "entries", take, now_ms)
            if message.starts[-1] != len(body):
                raise ValueError(f"{len(body) - message.starts[-1]} bytes too many")
            if refusal is None and message.count("entries") > len(entries):
                refusal, outcome = _TOO_LARGE, "invalid"
            verdicts: dict[Entity, Validated] = {}
            for number, raw in enumerate(entries if refusal is None else (), 1):
                validate_one(verdicts, *_alteration(entry_class, raw))
                if number % SLICE == 0:
                    yield
            if refusal is None and body[message.starts[2] :] != _tags(version):
                raise ValueError("unknown tagged fields")  # something else might be meant than what is read here
        if refusal is not None:
            self.requests[outcome] += 1
            return Answer((yield from _refused(version, entities, refusal)))
        changes = {one.entity: one.changes for one in verdicts.values() if one.changes}
        validate_only = message.number("validate_only")
        if validate_only or not changes:
            self.requests["validated" if validate_only else "invalid"] += 1
            return Answer(alter_response(version, verdicts.values()))
        return Wait(partial(self._apply, request.user, changes, list(verdicts.values()), version))

    def _refusal(self, user: str) -> tuple[AdminError | None, str]:
        """Why this user may alter nothing, and the outcome that is counted."""
        authority = self._authority
        if authority.rule == "deny":
            text = f"quotas cannot be altered through this kquota sidecar: they are managed {authority.managed}"
            return AdminError(POLICY_VIOLATION, text), "denied"
        if not authority.may_alter(user):
            text = f"user {user} may not alter quotas through this kquota sidecar"
            return AdminError(CLUSTER_AUTHORIZATION_FAILED, text), "unauthorized"
        return None, ""

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
    return encoded(class_of("describe_client_quotas", version, "request")(components=(), strict=False))


def read_described(version: int, body: bytes) -> dict[Entity, dict[str, float]]:
    """The limits in a broker's answer. Raises WireError if it cannot be parsed, AdminError if the broker refuses."""
    cls = class_of("describe_client_quotas", version, "response")
    with readable("broker_malformed", cls):
        check_lengths(cls, body)
        response, _ = entity_reader(cls)(body, 0)
    if response.error_code is not ErrorCode.none:
        raise AdminError(response.error_code.value, f"{response.error_code.name}: {response.error_message or ''}")
    return {
        entity_of((part.entity_type, part.entity_name) for part in entry.entity): {
            value.key: value.value for value in entry.values
        }
        for entry in response.entries or ()
    }


def _described_head(version: int, error: AdminError | None = None) -> bytes:
    code, message = (0, "") if error is None else (error.code, error.message)
    return INT16.pack(code) + _string(version, message)


def _described_entry(version: int, entity: Entity, limits: Mapping[str, float]) -> bytes:
    tags = _tags(version)
    values = [_string(version, key) + _FLOAT64.pack(value) + tags for key, value in limits.items()]
    return _entity(version, entity) + _array(version, values, inside=True) + tags


def _components(cls: Any, body: bytes) -> tuple[tuple[Component, ...], bool]:
    """The filter of a DescribeClientQuotas request: its first components, and whether it is strict.

    Of four components two have the same type or one has an unknown one, so further ones do not matter.
    """
    count, at = array_start(body, 0, cls.__flexible__)
    strict, found = False, []
    if count <= MAX_COMPONENTS:
        check_lengths(cls, body, MAX_TAGS)
        message, _ = entity_reader(cls)(body, 0)
        strict, found = message.strict, message.components
    else:
        _, component = array_of(cls)
        for _ in range(MAX_COMPONENTS):
            end = check_part(component, body, at, MAX_TAGS)
            one, _ = entity_reader(component)(body, at)
            found.append(one)
            at = end
    return tuple(Component(one.entity_type, one.match_type, one.match) for one in found), strict


def _alteration(cls: Any, entry: bytes) -> tuple[Entity, list[Op]]:
    """What an entry of an AlterClientQuotas request, whose lengths were checked, is to change."""
    message, _ = entity_reader(cls)(entry, 0)
    entity = entity_of((part.entity_type, part.entity_name) for part in message.entity or ())
    return entity, [Op(op.key, None if op.remove else op.value) for op in message.ops or ()]


def alter_response(version: int, verdicts: Iterable[Validated], failed: AdminError | None = None) -> bytes:
    """The body of an AlterClientQuotas response. `failed`: applying the valid alterations failed."""
    entries = []
    for one in verdicts:
        error = one.error or (failed if one.changes else None)
        entries.append(_altered_entry(version, _entity(version, one.entity), error))
    return _NO_THROTTLE + _array(version, entries)


def _altered_entry(version: int, entity: bytes, error: AdminError | None) -> bytes:
    code = 0 if error is None else error.code
    message = _NULL_STRING[version] if error is None else _string(version, error.message)
    return INT16.pack(code) + message + entity + _tags(version)


def _refused(version: int, entities: Iterable[bytes], error: AdminError) -> Slices[bytes]:
    """The body of an AlterClientQuotas response: every entity once, as the request spells it, with the same error. The
    message of the error is in the first `MAX_ALTERED`, so that the answer is not several times the request."""
    silent = AdminError(error.code, "")
    found: list[bytes] = []
    for entity in entities:
        found.append(_altered_entry(version, entity, error if len(found) < MAX_ALTERED else silent))
        if len(found) % SLICE == 0:
            yield
    return _NO_THROTTLE + _array(version, found)


# ---- parts of answers, in version 0 and (flexible) version 1 ---------------------------------------------------------

_NULL_STRING: Final = (b"\xff\xff", b"\0")


def _tags(version: int) -> bytes:
    return b"\0" if version else b""


def _string(version: int, text: str) -> bytes:
    return compact_string(text) if version else string(text)


def _array(version: int, elements: Sequence[bytes], *, inside: bool = False) -> bytes:
    """An array, and the tagged fields of the message, whose last field it is unless `inside` of another."""
    return array_head(len(elements), bool(version)) + b"".join(elements) + (b"" if inside else _tags(version))


def _entity(version: int, entity: Entity) -> bytes:
    parts = [
        _string(version, kind) + (_NULL_STRING[version] if name is None else _string(version, name)) + _tags(version)
        for kind, name in entity
    ]
    return _array(version, parts, inside=True)
