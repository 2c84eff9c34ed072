"""Kafka's administration of client quotas (KIP-546): which entities exist, what can be set, how filters match.

The rules are those of a KRaft controller (``ClientQuotaControlManager``) and of the brokers' image of its data
(``ClientQuotasImage``); error codes are theirs, messages are our own.
``tests/broker/test_quota_admin_kafka.py`` sends the same requests to a real broker and compares.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from quota.connections import ConnectionEntry, EntityType, canonical_address
from quota.entity import DEFAULT, Kind, Name
from quota.table import RATE_FIELD, Entry, QuotaTable

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"

CLUSTER_AUTHORIZATION_FAILED: Final = 31
UNSUPPORTED_VERSION: Final = 35
INVALID_REQUEST: Final = 42
POLICY_VIOLATION: Final = 44
KAFKA_STORAGE_ERROR: Final = 56

MAX_NAME_BYTES: Final = 32_767
"""The longest name in version 0 of both APIs (in version 1 a broker closes the connection over a longer one)."""

MAX_MESSAGE: Final = 500
"""Characters of a message to an administrator."""

Entity = tuple[tuple[str, str | None], ...]
"""Pairs (type, name), sorted by type; the name None is the default entity, as in Kafka's API."""
Quotas = Mapping[Entity, Mapping[str, float]]
"""What is set: entity -> key -> value."""
Changes = Mapping[Entity, Mapping[str, float | None]]
"""Changes: entity -> key -> new value, None to remove."""

CONNECTION_RATE: Final = "connection_creation_rate"
_LONG_MAX: Final = float(2**63)
"""Java compares with ``(double) Long.MAX_VALUE``, which is 2^63: a broker accepts 2^63 as well."""
_INT_MAX: Final = float(2**31 - 1)
_CLIENT_KEYS: Final[Mapping[str, float | None]] = {
    RATE_FIELD[Kind.PRODUCE]: _LONG_MAX,
    RATE_FIELD[Kind.FETCH]: _LONG_MAX,
    RATE_FIELD[Kind.REQUEST]: None,
    RATE_FIELD[Kind.MUTATION]: None,
}
"""Keys of users and client-ids with the largest whole number allowed; None: any number above 0, fractions too."""
_ADDRESS_KEYS: Final[Mapping[str, float | None]] = {CONNECTION_RATE: _INT_MAX}
_MAX_FRACTION: Final = 1e-6


class AdminError(Exception):
    """A request, or one entity of it, is refused: a Kafka error code, and a sentence for the administrator."""

    def __init__(self, code: int, message: str) -> None:
        if len(message) > MAX_MESSAGE:  # some contain names of 32 767 bytes, and this is all that fits
            message = message[: MAX_MESSAGE - 1] + "…"
        super().__init__(message)
        self.code: Final = code
        self.message: Final = message


class Op(NamedTuple):
    """One key of an alteration; the value None removes it."""

    key: str
    value: float | None


@dataclass(frozen=True, slots=True)
class Validated:
    """The verdict on one entity of an AlterClientQuotas request."""

    entity: Entity
    """As the request spells it; addresses have several spellings."""
    changes: Mapping[str, float | None]
    """Empty when nothing is to be done."""
    error: AdminError | None = None


class Component(NamedTuple):
    """One part of a DescribeClientQuotas filter."""

    entity_type: str
    match_type: int
    """0: exactly `match`, 1: the default entity, 2: any name, the default included."""
    match: str | None


def entity_of(pairs: Iterable[tuple[str, str | None]]) -> Entity:
    """The entity that a request names. If a type occurs twice, the last name counts, as in a broker."""
    return tuple(sorted(dict(pairs).items()))


def entity_text(entity: Entity) -> str:
    """For people: ``user=alice, client-id=<default>``."""
    named = sorted(entity, key=lambda pair: pair[0] == CLIENT_ID)
    return ", ".join(f"{kind}={'<default>' if name is None else name}" for kind, name in named) or "(nothing)"


def entity_of_entry(entry: Entry | ConnectionEntry) -> Entity:
    """The entity of a quota entry, in Kafka's terms."""
    names: tuple[tuple[str, Name], ...] = (
        ((CLIENT_ID, entry.client_id), (USER, entry.user))
        if isinstance(entry, Entry)
        else ((entry.entity_type.value, entry.name),)
    )
    return tuple((kind, None if name is DEFAULT else str(name)) for kind, name in names if name is not None)


def names_of(entity: Entity) -> tuple[Name, Name]:
    """(user, client-id) of an entity, as in quota entries. It must not be an address."""
    found: dict[str, Name] = {kind: DEFAULT if name is None else name for kind, name in entity}
    return found.get(USER), found.get(CLIENT_ID)


def canonical(entity: Entity) -> Entity:
    """The same entity with its address, if it is one, in the canonical spelling of limits and peers."""
    return tuple((kind, _canonical(kind, name)) for kind, name in entity)


def _canonical(kind: str, name: str | None) -> str | None:
    if kind != IP or name is None:
        return name
    try:
        return canonical_address(name)
    except ValueError:
        return name


def enforced(table: QuotaTable) -> Iterator[tuple[Entity, Mapping[str, float]]]:
    """The limits in force, as DescribeClientQuotas shows them; shadow limits are not in force and not included. They
    may be taken in steps, as a table does not change.

    Of the connection limits only the rate of an address is a Kafka client quota.
    """
    for entry in table.entries:
        limits = {key: limit for key in RATE_FIELD.values() if (limit := getattr(entry, key)) is not None}
        if limits and entry.mode == "enforce":
            yield entity_of_entry(entry), limits
    for one in table.connections.entries:
        rate = one.connection_creation_rate
        if one.entity_type is EntityType.IP and rate is not None and one.mode == "enforce":
            yield entity_of_entry(one), {CONNECTION_RATE: rate}


# ---- AlterClientQuotas ----------------------------------------------------------------------------------------------


def validate_one(verdicts: dict[Entity, Validated], entity: Entity, ops: Sequence[Op]) -> None:
    """Validate the next alteration of an AlterClientQuotas request, whose verdicts so far these are, as Kafka does: one
    verdict per distinct entity, in the request's order.

    Entities are validated one by one; a bad one does not stop others, but none of its own keys is changed. A repeated
    entity is an error, and yet its first alteration stands if that was valid: so it is in a controller.
    """
    before = verdicts.get(entity)
    if before is not None:
        error = AdminError(INVALID_REQUEST, f"{entity_text(entity)} is in this request more than once")
        verdicts[entity] = Validated(entity, before.changes, error)
        return
    try:
        verdicts[entity] = Validated(entity, _validated(entity, ops))
    except AdminError as error:
        verdicts[entity] = Validated(entity, {}, error)


def _validated(entity: Entity, ops: Sequence[Op]) -> dict[str, float | None]:
    changes: dict[str, float | None] = {}
    for key, value in ops:
        if key in changes:
            raise AdminError(INVALID_REQUEST, f"{entity_text(entity)} has {key or 'an empty key'} more than once")
        changes[key] = value
    check_entity(entity)
    for key, value in changes.items():
        if value is not None:  # a key to be removed need not be set, nor even exist
            check_value(entity, key, value)
    return changes


def check_entity(entity: Entity) -> None:
    """Raise AdminError unless limits can be set for this entity."""
    if not entity:
        raise AdminError(INVALID_REQUEST, "expected a user, a client-id or both, got an empty entity")
    for kind, name in entity:
        if kind not in (USER, CLIENT_ID, IP):
            raise AdminError(INVALID_REQUEST, f"expected the entity type {USER}, {CLIENT_ID} or {IP}, got {kind!r}")
        if name == "":
            raise AdminError(INVALID_REQUEST, f"expected a name or the default, got an empty {kind}")
        if name is not None and (size := len(name.encode())) > MAX_NAME_BYTES:
            raise AdminError(INVALID_REQUEST, f"expected a {kind} name of at most {MAX_NAME_BYTES} bytes, got {size}")
    names = dict(entity)
    if IP not in names:
        return
    if len(names) > 1:
        raise AdminError(INVALID_REQUEST, f"an {IP} cannot be combined with a {USER} or a {CLIENT_ID}")
    address = names[IP]
    if address is not None:
        try:
            canonical_address(address)
        except ValueError:
            text = f"expected an IPv4 or IPv6 address (host names are not resolved here), got {address!r}"
            raise AdminError(INVALID_REQUEST, text) from None


def check_value(entity: Entity, key: str, value: float) -> None:
    """Raise AdminError unless `key` is a quota of such entities and may be `value`.

    One deviation from brokers: NaN is refused, and infinity for quotas that may have a fraction.
    """
    keys = _ADDRESS_KEYS if IP in dict(entity) else _CLIENT_KEYS
    if key not in keys:
        raise AdminError(INVALID_REQUEST, f"expected {' or '.join(keys)}, got {key or 'an empty key'}")
    if not value > 0 or math.isinf(value):
        raise AdminError(INVALID_REQUEST, f"expected {key} to be a finite number above 0, got {value:g}")
    most = keys[key]
    if most is None:
        return
    if value > most:
        raise AdminError(INVALID_REQUEST, f"expected {key} to be at most {most:.0f}, got {value:g}")
    if math.fmod(value, 1.0) > _MAX_FRACTION:
        raise AdminError(INVALID_REQUEST, f"expected {key} to be a whole number, got {value!r}")


# ---- DescribeClientQuotas -------------------------------------------------------------------------------------------

_EXACT, _DEFAULT, _ANY = 0, 1, 2


def selection(components: Sequence[Component], *, strict: bool) -> Callable[[Entity], bool]:
    """Whether a DescribeClientQuotas filter selects an entity. Raises AdminError for an invalid filter.

    Every component must match. `strict`: the entity has no types besides those of the components, so that a strict
    filter without components finds nothing; without `strict` it finds everything.
    """
    wanted: dict[str, Component] = {}
    for component in components:
        _check_component(component, wanted)
        wanted[component.entity_type] = component
    if IP in wanted and len(wanted) > 1:
        raise AdminError(INVALID_REQUEST, f"an {IP} cannot be combined in a filter with a {USER} or a {CLIENT_ID}")

    def selects(entity: Entity) -> bool:
        if strict and (not wanted or len(entity) != len(wanted)):
            return False
        names = dict(entity)
        return all(
            kind in names and (component.match_type == _ANY or names[kind] == _canonical(kind, component.match))
            for kind, component in wanted.items()
        )

    return selects


def _check_component(component: Component, before: Mapping[str, Component]) -> None:
    kind, match_type, match = component
    if not kind:
        raise AdminError(INVALID_REQUEST, "expected an entity type, got an empty one")
    if kind in before:
        raise AdminError(INVALID_REQUEST, f"expected each entity type once, {kind} is in the filter twice")
    if kind not in (USER, CLIENT_ID, IP):
        raise AdminError(UNSUPPORTED_VERSION, f"expected the entity type {USER}, {CLIENT_ID} or {IP}, got {kind}")
    if match_type not in (_EXACT, _DEFAULT, _ANY):
        raise AdminError(INVALID_REQUEST, f"expected match type 0 (exact), 1 (default) or 2 (any), got {match_type}")
    if match_type == _EXACT and match is None:
        raise AdminError(INVALID_REQUEST, f"expected the name of the {kind} to look for")
    if match_type != _EXACT and match is not None:
        raise AdminError(INVALID_REQUEST, f"expected no name with match type {match_type}, got one for {kind}")
