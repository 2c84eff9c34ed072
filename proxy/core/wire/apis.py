"""What is known about each API and version: lookups in the generated tables, with Kafka's two exceptions.

The exceptions are in Kafka's code generator and not in its schemas: a ControlledShutdown request of version 0 has no
client id, and an ApiVersions response always has the oldest header, so that a client can read it before it knows which
versions the broker speaks (KIP-511).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from proxy.core.wire import schema
from proxy.core.wire.frames import WireError

PRODUCE: Final = 0
FETCH: Final = 1
METADATA: Final = 3
CONTROLLED_SHUTDOWN: Final = 7
FIND_COORDINATOR: Final = 10
JOIN_GROUP: Final = 11
LEAVE_GROUP: Final = 13
SYNC_GROUP: Final = 14
API_VERSIONS: Final = 18
DESCRIBE_CLIENT_QUOTAS: Final = 48
ALTER_CLIENT_QUOTAS: Final = 49
SHARE_FETCH: Final = 78


def keys_of(*names: str) -> frozenset[int]:
    """The API keys of these names."""
    by_name = {name: key for key, name in schema.API_NAMES.items()}
    return frozenset(by_name[name] for name in names)


EPOCH_HEARTBEATS: Final = keys_of("ConsumerGroupHeartbeat", "ShareGroupHeartbeat", "StreamsGroupHeartbeat")
"""Heartbeats that carry the member's epoch (KIP-848), and with which a member leaves."""
MEMBERSHIP: Final = EPOCH_HEARTBEATS | keys_of("JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup")
"""Requests of the members of groups: they join, heartbeat (SyncGroup counts as a heartbeat), and leave."""
TRANSACTIONS: Final = keys_of("AddPartitionsToTxn", "EndTxn")
"""With these a producer begins and ends transactions."""
OF_TRANSACTIONS: Final = TRANSACTIONS | keys_of("InitProducerId", "AddOffsetsToTxn", "TxnOffsetCommit")
"""All requests of transactional producers besides Produce. One that reaches a broker late may end another transaction
than it was sent for, or fence its own producer."""
(END_TXN,) = keys_of("EndTxn")
ENDING: Final = keys_of("EndTxn", "FindCoordinator", "Metadata")
"""A transaction's end, and what the client may ask before it. Offsets (AddOffsetsToTxn, TxnOffsetCommit) are not among
them: when those passed, Kafka Streams (32 MB of buffers, 100 kB/s) committed 0.05 of its limit in place of 0.14."""
UNKNOWN: Final = 255
"""In a table of facts about versions of APIs (`by_place`): no value."""
# Compared for each request or response: C numbers in compiled code (see the .pxd).
_APIS: Final = max(schema.APIS) + 1
_VERSIONS: Final = max(highest for _, _, highest, *_ in schema.APIS.values()) + 1
"""Places per API in such a table."""


def place(api_key: int, version: int) -> int:
    """The index of this version of an API in the tables of `by_place`. Versions outside the tables share the last
    place."""
    if 0 <= api_key < _APIS and 0 <= version < _VERSIONS:
        return api_key * _VERSIONS + version
    return _APIS * _VERSIONS


def by_place(fact: Callable[[int, int], int]) -> bytes:
    """A table of small numbers: `fact(api_key, version)` for all that are known. An index into it takes a hundredth of
    the time of a dictionary lookup, and this is done several times for each request."""
    table = bytearray((UNKNOWN,)) * (_APIS * _VERSIONS + 1)
    for api_key, (_, lowest, highest, *_) in schema.APIS.items():
        for version in range(lowest, highest + 1):
            table[place(api_key, version)] = fact(api_key, version)
    return bytes(table)


def api_name(api_key: int) -> str:
    """`Produce` for 0 and so on; `api 123` for an API that is not in the table."""
    known = schema.APIS.get(api_key)
    return known[0] if known else f"api {api_key}"


def version_range(api_key: int) -> tuple[int, int] | None:
    """Lowest and highest version in the table, or None for an unknown API."""
    known = schema.APIS.get(api_key)
    return (known[1], known[2]) if known else None


def is_known(api_key: int, api_version: int) -> bool:
    """Whether the table has this API in this version."""
    known = schema.APIS.get(api_key)
    return known is not None and known[1] <= api_version <= known[2]


def check_known(api_key: int, version: int) -> None:
    """Raise WireError ("unsupported_version") unless the table has this API in this version."""
    if not is_known(api_key, version):
        known = version_range(api_key)
        versions = "" if known is None else f" (it knows {known[0]} to {known[1]})"
        raise WireError("unsupported_version", f"kquota does not know {api_name(api_key)} version {version}{versions}")


def is_flexible(api_key: int, api_version: int) -> bool:
    """Whether this version has tagged fields and compact lengths (KIP-482). Unknown APIs: False."""
    known = schema.APIS.get(api_key)
    return known is not None and api_version >= known[3]


def request_header_version(api_key: int, api_version: int) -> int:
    """0, 1 or 2; for unknown APIs 1, whose fields every header but one has."""
    if api_key == CONTROLLED_SHUTDOWN and api_version == 0:
        return 0
    return 2 if is_flexible(api_key, api_version) else 1


HEADERS: Final = by_place(request_header_version)
"""`request_header_version` of every known API and version, by `place`."""


def response_header_version(api_key: int, api_version: int) -> int:
    """0 (correlation id) or 1 (correlation id and tagged fields)."""
    return 1 if api_key != API_VERSIONS and is_flexible(api_key, api_version) else 0
