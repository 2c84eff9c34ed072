"""Kafka's administration of quotas as rules: what may be set and how it is found. Cases G of quota-cases by number.

Their expectations come from Kafka's own tests; tests/broker/test_quota_admin_kafka.py asks a real broker the same.
"""

import math
from collections.abc import Sequence

import pytest

from quota import admin
from quota.admin import AdminError, Component, Entity, Op, Validated, enforced, entity_of, selection, validate_one
from quota.connections import ConnectionEntry, ConnectionLimits, EntityType
from quota.entity import DEFAULT
from quota.overlay import altered, laid_over
from quota.table import RATE_FIELD, CandidateLimits, Entry, QuotaTable

PRODUCE, FETCH, TIME, MUTATIONS = RATE_FIELD.values()


def entity(user: str | None = "-", client_id: str | None = "-", ip: str | None = "-") -> Entity:
    """An entity; "-" leaves a type out, None is the default."""
    given = (("user", user), ("client-id", client_id), ("ip", ip))
    return entity_of((kind, name) for kind, name in given if name != "-")


def change(entity: Entity, **values: float | None) -> tuple[Entity, list[Op]]:
    return entity, [Op(key, value) for key, value in values.items()]


def validate(*alterations: tuple[Entity, Sequence[Op]]) -> list[Validated]:
    """The verdicts on a whole request."""
    verdicts: dict[Entity, Validated] = {}
    for named, ops in alterations:
        validate_one(verdicts, named, ops)
    return list(verdicts.values())


class Table:
    """A file, and alterations over it, applied one after the other."""

    def __init__(self, *in_file: Entry, connections: Sequence[ConnectionEntry] = ()) -> None:
        self.in_file = QuotaTable(in_file, connections=ConnectionLimits(connections))
        self.overlay: dict[Entity, dict[str, float | None]] = {}

    def alter(self, entity: Entity, **values: float | None) -> None:
        (verdict,) = validate(change(entity, **values))
        assert verdict.error is None
        self.overlay = altered(self.overlay, self.in_file, {entity: verdict.changes})

    @property
    def in_force(self) -> QuotaTable:
        return laid_over(self.in_file, self.overlay)


@pytest.mark.parametrize(
    "alteration",
    [
        change(entity(""), producer_byte_rate=1.0),  # G4
        change(entity(client_id=""), producer_byte_rate=1.0),
        (entity_of([("", "name")]), [Op(TIME, 12.34)]),
        (entity_of([("other", "name")]), [Op(TIME, 12.34)]),
        change((), producer_byte_rate=10000.0),
        change(entity("u", ip="1.2.3.4"), producer_byte_rate=1.0),  # G5
        change(entity("u", "c", None), producer_byte_rate=1.0),
        *(change(entity(ip=name), connection_creation_rate=1.0) for name in ("not a host", "1.2.3", "", "localhost")),
        *(change(entity(ip="::1"), connection_creation_rate=rate) for rate in (float(2**31), 1.5, 0.0)),
        change(entity(ip="::1"), producer_byte_rate=1.0),
        change(entity("u"), bad=1.0, producer_byte_rate=1.0),  # G7
        (entity("u"), [Op(PRODUCE, 1.0), Op("", 1.0)]),
        (entity("u"), [Op(PRODUCE, 1.0), Op(PRODUCE, None)]),
        change(entity("x" * 32_768), producer_byte_rate=1.0),  # longer than the protocol can carry
        change(entity("ü" * 16_384), producer_byte_rate=1.0),
    ],
)
def test_refuses_invalid_alterations_alone(alteration: tuple[Entity, list[Op]]) -> None:
    bad, good = validate(alteration, change(entity("other"), producer_byte_rate=7.0, no_such_key=None))
    assert bad.error is not None
    assert (bad.error.code, bad.changes) == (admin.INVALID_REQUEST, {})
    assert (good.error, good.changes[PRODUCE]) == (None, 7.0)


@pytest.mark.parametrize(("key", "value"), [(FETCH, math.nan), (TIME, math.nan), (TIME, math.inf)])
def test_numbers_that_brokers_take_are_refused(key: str, value: float) -> None:
    """The others are those of tests/broker/test_quota_admin_kafka.py."""
    (verdict,) = validate(change(entity("u"), **{key: value}))
    assert verdict.error is not None


def test_caps_of_an_address_stay_when_its_rate_is_altered() -> None:
    user = ConnectionEntry(EntityType.USER, "u", 7.0)
    table = Table(connections=[ConnectionEntry(EntityType.IP, "1.2.3.4", 5.0, 3), user])
    for rate in (None, 9.0):
        table.alter(entity(ip="1.2.3.4"), connection_creation_rate=rate)
        assert set(table.in_force.connections.entries) == {ConnectionEntry(EntityType.IP, "1.2.3.4", rate, 3), user}
    shadow = Table(connections=[ConnectionEntry(EntityType.IP, DEFAULT, 5.0, 3, mode="shadow")])
    assert dict(enforced(shadow.in_force)) == {}
    shadow.alter(entity(ip=None), connection_creation_rate=None)
    assert shadow.in_force.connections.entries == shadow.in_file.connections.entries
    shadow.alter(entity(ip=None), connection_creation_rate=9.0)
    assert shadow.in_force.connections.entries == (ConnectionEntry(EntityType.IP, DEFAULT, 9.0),)


@pytest.mark.parametrize(
    ("components", "expected"),
    [
        ([("ip", 2, None), ("user", 2, None)], admin.INVALID_REQUEST),  # G9
        ([("client-id", 0, "c"), ("ip", 0, "1.2.3.4")], admin.INVALID_REQUEST),  # G9
        ([("other", 0, "name")], admin.UNSUPPORTED_VERSION),  # G10
        ([("ip", 2, None), ("other", 2, None)], admin.UNSUPPORTED_VERSION),
        ([("", 2, None)], admin.INVALID_REQUEST),
        ([("user", 2, None), ("user", 0, "u")], admin.INVALID_REQUEST),
        *(([("user", *match)], admin.INVALID_REQUEST) for match in ((0, None), (1, "u"), (2, "u"), (3, "u"))),
        ([("user", -1, None)], admin.INVALID_REQUEST),
    ],
)
def test_g9_g10_filters_that_make_no_sense(components: list[tuple[str, int, str | None]], expected: int) -> None:
    with pytest.raises(AdminError) as caught:
        selection([Component(*one) for one in components], strict=False)
    assert caught.value.code == expected


def test_overlay_enforces_limits_of_shadow_entity() -> None:
    table = Table(Entry("a", None, 1.0, 2.0, mode="shadow"))
    assert dict(enforced(table.in_force)) == {}
    table.alter(entity("a"), producer_byte_rate=None)  # not in force: nothing to remove
    assert table.overlay == {}
    table.alter(entity("a"), producer_byte_rate=9.0)
    assert dict(enforced(table.in_force)) == {entity("a"): {PRODUCE: 9.0}}
    assert table.in_force.entries == (Entry("a", None, 9.0),)
    table.alter(entity("a"), producer_byte_rate=None)
    assert table.in_force.entries == table.in_file.entries


def test_candidates_follow_altered_and_removed_limits() -> None:
    candidate = CandidateLimits(producer_byte_rate=5.0)
    table = Table(Entry("a", None, 10.0, candidate=candidate))
    table.alter(entity("a"), producer_byte_rate=9.0)
    assert table.in_force.entries == (Entry("a", None, 9.0, candidate=candidate),)
    assert dict(enforced(table.in_force)) == {entity("a"): {PRODUCE: 9.0}}
    table.alter(entity("a"), producer_byte_rate=None)
    assert table.in_force.entries == ()
