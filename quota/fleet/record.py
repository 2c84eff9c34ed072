"""The record that an instance publishes: its usage, demand and grant for each group, packed into a few bytes.

Big-endian: magic "kq", version, flags (1: leaving), fleet (8 bytes of a hash of its id), member (8 random bytes, drawn
at the start of a process), sequence number (8), time of writing (8, ms since 1970), interval in ms (4), number of
groups (2), length of the name (1), the name (UTF-8), then per group its hash (8) and five 32-bit floats, and a MAC of
16 bytes over all of it. Groups are identified by a hash, so that no user names leave the instance.
"""

import hashlib
import hmac
import math
import struct
from collections.abc import Container, Sequence
from typing import Final, Literal, NamedTuple

from quota.entity import CounterKey

MAGIC: Final = b"kq"
VERSION: Final = 2
"""Version 1 had neither a MAC nor the time of writing."""
MAX_GROUPS: Final = 10_000
LONGEST_NAME: Final = 63
"""Bytes of an instance's name."""
MAX_INTERVAL_MS: Final = 600_000
MAX_BYTES: Final = 300_000
"""The longest record: 10 000 groups of 28 bytes, the head, and the MAC."""
MAC_BYTES: Final = 16
"""HMAC-SHA-256, cut in half: one in 2^128 forgeries passes."""

_LEAVING: Final = 1
_HEAD: Final = struct.Struct(">2sBBQQQQIHB")
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
    """Of a decoded record only those that its reader wants."""
    written_ms: int = 0
    """By the writer's clock, since 1970."""
    has_groups: bool = True
    """Of a decoded record, whether it reports any group, wanted or not."""


Outcome = Literal["malformed", "other_fleet", "other_version", "bad_mac"]
"""Malformed, or with impossible content; with a valid head, of another fleet that shares the topic; of an older or
newer kquota; written by someone who has none of the keys, or changed, or copied from another topic or partition."""


class FleetRecordError(ValueError):
    """Not a record of this fleet: it changes nothing."""

    def __init__(self, outcome: Outcome, text: str) -> None:
        super().__init__(text)
        self.outcome: Final = outcome


class Seal:
    """Authenticates the records of one fleet on one topic.

    A MAC is HMAC-SHA-256 of the partition and the record's bytes, under a key derived from the fleet's key, id and
    topic. A record therefore counts only where it was published.
    """

    __slots__ = ("_keys", "fleet")

    def __init__(self, keys: Sequence[bytes], topic: str, fleet_id: str) -> None:
        """The first key signs; a record that any of them signed is accepted."""
        parts = (b"kquota fleet record", topic.encode(), fleet_id.encode("utf-8", "surrogatepass"))
        purpose = b"".join([len(part).to_bytes(4, "big") + part for part in parts])
        self._keys = [hmac.digest(key, purpose, "sha256") for key in keys]
        self.fleet: Final = _hash(b"fleet", fleet_id)
        """The fleet's id in records."""

    def sign(self, partition: int, content: bytes) -> bytes:
        """The MAC of a record."""
        return _mac(self._keys[0], partition, content)

    def accepts(self, partition: int, content: bytes, mac: bytes) -> bool:
        """Whether a holder of one of the keys published these bytes to this partition."""
        return any(hmac.compare_digest(_mac(key, partition, content), mac) for key in self._keys)


def _mac(key: bytes, partition: int, content: bytes) -> bytes:
    return hmac.digest(key, partition.to_bytes(4, "big") + content, "sha256")[:MAC_BYTES]


def group_hash(kind: str, key: CounterKey) -> int:
    """The group's id in records: 64 bits; two of a thousand groups collide once in 10^13 fleets."""
    return _hash(kind.encode(), *("-" if name is None else f"={name}" for name in key))


def encode(seal: Seal, partition: int, record: Record) -> bytes:
    """The bytes to publish to this partition."""
    name = record.name.encode("utf-8", "replace")[:LONGEST_NAME]
    head = _HEAD.pack(
        MAGIC,
        VERSION,
        _LEAVING if record.leaving else 0,
        seal.fleet,
        record.member,
        record.seq,
        record.written_ms,
        record.interval_ms,
        len(record.groups),
        len(name),
    )
    content = b"".join([head, name, *(_USE.pack(*use) for use in record.groups)])
    return content + seal.sign(partition, content)


def decode(seal: Seal, partition: int, data: bytes, wanted: Container[int] | None = None) -> Record:
    """Decode a record that was read from this partition; of its groups only those `wanted` (None: all).

    Raises FleetRecordError for anything that :func:`encode` does not write with one of the keys.
    """
    if len(data) < 3 or data[:2] != MAGIC:
        raise FleetRecordError("malformed", "not a record of a fleet")
    if data[2] != VERSION:
        raise FleetRecordError("other_version", f"version {data[2]}, expected {VERSION}")
    if len(data) < _HEAD.size + MAC_BYTES:
        raise FleetRecordError("malformed", f"{len(data)} bytes, expected at least {_HEAD.size + MAC_BYTES}")
    _, _, flags, its_fleet, member, seq, written_ms, interval_ms, count, length = _HEAD.unpack_from(data)
    if its_fleet != seal.fleet:
        raise FleetRecordError("other_fleet", "of another fleet")
    start, end = _HEAD.size + length, len(data) - MAC_BYTES
    if flags & ~_LEAVING or count > MAX_GROUPS or length > LONGEST_NAME or not 0 < interval_ms <= MAX_INTERVAL_MS:
        raise FleetRecordError("malformed", "its header is invalid")
    if end != start + count * _USE.size:
        expected = start + count * _USE.size + MAC_BYTES
        raise FleetRecordError("malformed", f"{len(data)} bytes, expected {expected}")
    if not seal.accepts(partition, data[:end], data[end:]):
        raise FleetRecordError("bad_mac", "its MAC matches no key")
    uses = _USE.iter_unpack(data[start:end])
    groups = tuple([GroupUse(*values) for values in uses if wanted is None or values[0] in wanted])
    for use in groups:
        # Chained comparisons are false for NaN.
        if not (
            0.0 <= use.usage < math.inf
            and 0.0 <= use.demand <= 1.0
            and 0.0 <= use.level < math.inf
            and 0.0 <= use.held <= 1.0
            and 0.0 <= use.claim <= 1.0
        ):
            raise FleetRecordError("malformed", "an impossible number")
    name = data[_HEAD.size : start].decode("utf-8", "replace")
    return Record(member, seq, interval_ms, bool(flags & _LEAVING), name, groups, written_ms, count > 0)


def next_member(member: int, mac: bytes) -> int:
    """Another member number in place of one that another instance uses too, as its record with this MAC shows. Both
    draw again, and differ because they saw each other's record."""
    return _hash(b"member", member.to_bytes(8, "big"), mac)


def _hash(*parts: bytes | str) -> int:
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        data = part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(4, "big"))
        digest.update(data)
    return int.from_bytes(digest.digest(), "big")
