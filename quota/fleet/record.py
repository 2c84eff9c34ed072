"""The record that an instance publishes: its usage, demand and grant for each group, packed into a few bytes.

Big-endian: magic "kq", version, flags (1: leaving), fleet (8 bytes of a hash of its id), member (8 random bytes, drawn
at the start of a process), sequence number (8), interval in ms (4), number of groups (2), length of the name (1), the
name (UTF-8), then per group its hash (8) and five 32-bit floats. Groups are identified by a hash, so that no user names
leave the instance.
"""

import hashlib
import math
import struct
from typing import Final, NamedTuple

from quota.entity import CounterKey

MAGIC: Final = b"kq"
VERSION: Final = 1
MAX_GROUPS: Final = 10_000
LONGEST_NAME: Final = 63
"""Bytes of an instance's name."""
MAX_INTERVAL_MS: Final = 3_600_000
MAX_BYTES: Final = 300_000
"""The longest record: 10 000 groups of 28 bytes, and the head."""

_LEAVING: Final = 1
_HEAD: Final = struct.Struct(">2sBBQQQIHB")
_USE: Final = struct.Struct(">Qfffff")


class GroupUse(NamedTuple):
    """One group in a record. All but `usage` are fractions of the limit, from 0 to 1."""

    group: int
    usage: float
    """In the last interval: bytes/s, percent of one thread, partitions/s or connections/s."""
    demand: float
    """What the instance could use if it had it."""
    level: float
    """The content of its window, as a fraction of the whole limit's."""
    held: float
    """The grant in force when the record was written."""
    claim: float
    """The most that it will use until its next record. Above `held` it waits for this record to come back twice."""


class Record(NamedTuple):
    """One instance's report for one interval about its groups in one partition."""

    member: int
    seq: int
    interval_ms: int
    leaving: bool
    name: str
    groups: tuple[GroupUse, ...]


class FleetRecordError(ValueError):
    """Not a record of this version: it changes nothing."""


class OtherFleetError(FleetRecordError):
    """A valid head, of another fleet that shares the topic."""


def fleet_hash(fleet_id: str) -> int:
    """The fleet's id in records."""
    return _hash(b"fleet", fleet_id)


def group_hash(kind: str, key: CounterKey) -> int:
    """The group's id in records: 64 bits; two of a thousand groups collide once in 10^13 fleets."""
    return _hash(kind.encode(), *("-" if name is None else f"={name}" for name in key))


def encode(fleet: int, record: Record) -> bytes:
    """The bytes to publish."""
    name = record.name.encode("utf-8", "replace")[:LONGEST_NAME]
    head = _HEAD.pack(
        MAGIC,
        VERSION,
        _LEAVING if record.leaving else 0,
        fleet,
        record.member,
        record.seq,
        record.interval_ms,
        len(record.groups),
        len(name),
    )
    return b"".join([head, name, *(_USE.pack(*use) for use in record.groups)])


def decode(fleet: int, data: bytes) -> Record:
    """Decode a record. Raises FleetRecordError for anything that :func:`encode` does not write."""
    if len(data) < _HEAD.size or data[:2] != MAGIC:
        raise FleetRecordError("no record of a fleet")
    _, version, flags, its_fleet, member, seq, interval_ms, count, length = _HEAD.unpack_from(data)
    if version != VERSION:
        raise FleetRecordError(f"version {version}, expected {VERSION}")
    if its_fleet != fleet:
        raise OtherFleetError("of another fleet")
    start = _HEAD.size + length
    if flags & ~_LEAVING or count > MAX_GROUPS or length > LONGEST_NAME or not 0 < interval_ms <= MAX_INTERVAL_MS:
        raise FleetRecordError("its head is not sound")
    if len(data) != start + count * _USE.size:
        raise FleetRecordError(f"{len(data)} bytes, expected {start + count * _USE.size}")
    groups = tuple([GroupUse(*values) for values in _USE.iter_unpack(data[start:])])
    for use in groups:
        # Chained comparisons are false for NaN.
        if not (
            0.0 <= use.usage < math.inf
            and 0.0 <= use.demand <= 1.0
            and 0.0 <= use.level < math.inf
            and 0.0 <= use.held <= 1.0
            and 0.0 <= use.claim <= 1.0
        ):
            raise FleetRecordError("a number that cannot be")
    name = data[_HEAD.size : start].decode("utf-8", "replace")
    return Record(member, seq, interval_ms, bool(flags & _LEAVING), name, groups)


def _hash(*parts: bytes | str) -> int:
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        data = part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(4, "big"))
        digest.update(data)
    return int.from_bytes(digest.digest(), "big")
