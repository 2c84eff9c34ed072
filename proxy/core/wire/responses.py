"""Responses: broker addresses are replaced, ApiVersions is clamped; all else is unchanged. (Throttle: `throttle`.)

Positions are absolute indexes into the buffer. `start` is the index of the frame's 4-byte size; `end` is one past the
bytes that have arrived, which may be before or after the frame's own end.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence, Set
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from proxy.core.wire import apis, integers, schema, throttle
from proxy.core.wire.apis import (
    API_VERSIONS,
    FETCH,
    FIND_COORDINATOR,
    METADATA,
    PRODUCE,
    api_name,
    version_range,
)
from proxy.core.wire.frames import WireError
from proxy.core.wire.primitives import (
    ARRAY,
    INT16,
    INT32,
    SKIP,
    STRING,
    TAGS,
    UINT16,
    VARARRAY,
    VARLEN,
    Buffer,
    Program,
    Step,
    array_head,
    compact_string,
    read_uvarint,
    string,
    uvarint,
)
from proxy.core.wire.throttle import UNSUPPORTED_VERSION, body_start, by_version
from proxy.core.wire.walk import SLICE, Address, Short, Walker
from quota.steps import whole


class NodeAddress(NamedTuple):
    """Where a node listens."""

    node_id: int
    host: str
    port: int


Translate: TypeAlias = Callable[[Sequence[NodeAddress], bool], Sequence[tuple[str, int] | None]]
"""(brokers, whether these are all brokers of the cluster) -> the (host, port) that the client sees instead of each;
None: the client must not see the broker."""


class Rewritten(NamedTuple):
    """`head` replaces the first `consumed` bytes of the frame (the size prefix included); the rest is unchanged."""

    head: bytes
    consumed: int


class NeedMore(NamedTuple):
    """Too little of the frame has arrived; at least `wanted` bytes of it, prefix included, are needed."""

    wanted: int


# Compared for each request or response: C numbers in compiled code (see the .pxd).
_PRODUCE: Final = PRODUCE
MAX_WHOLE_BYTES: Final = 4 * 1024 * 1024
"""The longest response that is inspected to its end."""
LEADER_NOT_AVAILABLE: Final = 5
COORDINATOR_NOT_AVAILABLE: Final = 15
_METADATA_FIRST_FLEXIBLE: Final = schema.APIS[METADATA][3]
_PRODUCE_MAX: Final = schema.APIS[PRODUCE][2]
_FETCH_MAX: Final = schema.APIS[FETCH][2]
_FETCH_WITHOUT_ENDPOINTS: Final = 15


_ADDRESS_WALKS: Final = by_version(schema.ADDRESS_WALKS)

# Fetch is not inspected: brokers are asked with a version that has no addresses (fetch_version_upstream).
_NEEDS_REWRITE: Final = apis.by_place(
    lambda key, version: key == API_VERSIONS or (key != FETCH and key << 16 | version in _ADDRESS_WALKS)
)
_UNKNOWN: Final = apis.UNKNOWN
_APIS_AT: Final = 10
"""Where an ApiVersions response has its versions: behind size, correlation id and error."""
MAX_KEPT_BYTES: Final = 4096
"""The longest ApiVersions response that is remembered."""
MAX_APIS: Final = 1000
"""Kafka has some 90."""
_REWRITTEN_APIS: Final = frozenset((*schema.ADDRESS_WALKS, API_VERSIONS))


def fetch_version_upstream(version: int) -> int:
    """The Fetch version to ask a broker with, for a client that asked with `version`: 15 instead of 16 to 18.

    From 16 on a response can carry brokers' addresses in its last bytes, after data that is never kept (KIP-951). A
    consumer's requests of 15 to 18 have equal bodies, and a response of 15 is a valid response of 16 to 18. Versions
    that are not in the table are unchanged.
    """
    return _FETCH_WITHOUT_ENDPOINTS if _FETCH_WITHOUT_ENDPOINTS < version <= _FETCH_MAX else version


# ---- addresses -------------------------------------------------------------------------------------------------------


def carries_addresses(api_key: int, version: int) -> bool:
    """Whether a response of this version can carry addresses of brokers (or controllers).

    Raises WireError ("unsupported_version") for an unknown version of an API that can: it must not pass uninspected.
    """
    if api_key not in schema.ADDRESS_WALKS:
        return False
    apis.check_known(api_key, version)
    return api_key << 16 | version in _ADDRESS_WALKS


def needs_rewrite(api_key: int, version: int) -> bool:
    """Whether `rewrite` must see this response in rewrite mode. True also for unknown versions, which it refuses."""
    needs = _NEEDS_REWRITE
    found = needs[apis.place(api_key, version)]
    return api_key in _REWRITTEN_APIS if found == _UNKNOWN else found == 1


def is_plain(api_key: int, version: int, buf: Buffer, start: int, end: int) -> bool:
    """Whether this is one of the commonest responses, here whole and without anything that `rewrite` changes."""
    if api_key != _PRODUCE or not 0 <= version <= _PRODUCE_MAX or end - start < 9:
        return False
    frame_end = start + 4 + integers.int32(buf, start)
    return frame_end <= end and throttle.plain_produce(buf, start, frame_end, version) >= 0


def rewrite(
    api_key: int, version: int, buf: Buffer, start: int, end: int, translate: Translate
) -> Rewritten | NeedMore | None:
    """What rewrite mode changes in this response: addresses, or the versions that ApiVersions offers. None: nothing."""
    return whole(rewriting(api_key, version, buf, start, end, translate))


def rewriting(
    api_key: int, version: int, buf: Buffer, start: int, end: int, translate: Translate
) -> Generator[None, None, Rewritten | NeedMore | None]:
    """As `rewrite`, in slices: others may be served after each.

    Replace every broker address by the result of `translate`; None when nothing has to change.

    Only the frame's head through the last address is needed and copied. Nodes that do not exist (id -1, or no host) are
    unchanged. Everything but hosts, ports and the sizes around them stays byte for byte, unknown tagged fields
    included. A broker without an address is left out, as brokers do it with one that is not alive: its partitions have
    no leader, and nothing has it as its coordinator. So are controllers, which are not for clients.
    Raises WireError for unknown versions and malformed responses.
    """
    if api_key == API_VERSIONS:
        return clamp_api_versions(buf, start, end, version)
    if end - start < 9:
        return NeedMore(9)
    frame_end = start + 4 + integers.int32(buf, start)
    if not carries_addresses(api_key, version):
        return None
    walker = Walker(buf, end, frame_end)
    try:
        body = body_start(walker, start, api_key, version)
        yield from walker.walk(_ADDRESS_WALKS[api_key << 16 | version], body)
        return (yield from _replace(walker, start, body, api_key, version, translate))
    except Short as short:
        return NeedMore(short.wanted - start)


_ADDRESSES_IN_A_SLICE: Final = SLICE // 4
_TAGS_ONLY: Final[Program] = ((TAGS, ()),)


def _read(buf: Buffer, at: Address) -> NodeAddress:
    port: int = (UINT16 if at.port_bytes == 2 else INT32).unpack_from(buf, at.port_at)[0]
    return NodeAddress(at.node_id, _text(buf, at.host_at, at.host_end, at.compact), port)


def _text(buf: Buffer, at: int, end: int, compact: bool) -> str:
    """The string whose length field is at `at`, and which ends at `end`. Null is empty."""
    start = read_uvarint(buf, at, end)[1] if compact else at + 2
    return bytes(buf[start:end]).decode("utf-8", "replace")


_Edit: TypeAlias = tuple[int, int, bytes]
"""From, to, replacement."""


def _replace(
    walker: Walker, start: int, body: int, api_key: int, version: int, translate: Translate
) -> Generator[None, None, Rewritten | None]:
    """The head of the frame with translated addresses, or None when none changes."""
    frame_end = walker.frame_end
    edits, hidden = yield from _translated(walker, api_key, translate)
    if hidden:
        edits += _left_out(walker, hidden)
        if api_key == FIND_COORDINATOR:
            for at in hidden.values():
                edits += _no_coordinator(at, at.port_at + 4 if version >= 4 else body + (4 if version else 0))
        elif api_key == METADATA and frame_end - start <= MAX_WHOLE_BYTES:
            edits += yield from _no_leaders(walker, version, {at.node_id for at in hidden.values()})
        edits.sort()
    if not edits:
        return None
    for scope in reversed(walker.scopes):  # inner before outer: the new length of an inner size counts for the outer
        grown = yield from _grown(edits, scope.size_end, scope.content_end)
        edits.append((scope.size_at, scope.size_end, uvarint(scope.content_end - scope.size_end + grown)))
    if walker.scopes:
        edits.sort()
    grown = yield from _grown(edits, start, frame_end)
    head = bytearray(INT32.pack(frame_end - start - 4 + grown))
    done = start + 4
    view = memoryview(walker.buf)
    for number, (first, to, new) in enumerate(edits, 1):
        if number % SLICE == 0:
            yield
        head += view[done:first]
        head += new
        done = to
    return Rewritten(bytes(head), done - start)


def _translated(
    walker: Walker, api_key: int, translate: Translate
) -> Generator[None, None, tuple[list[_Edit], dict[int, Address]]]:
    """The edits for addresses that change, and the addresses that clients do not get, by their number."""
    found: list[tuple[int, Address, NodeAddress]] = []
    for number, at in enumerate(walker.addresses):
        if number % _ADDRESSES_IN_A_SLICE == 0 and number:
            yield
        node = _read(walker.buf, at)
        if node.node_id >= 0 and node.host:
            found.append((number, at, node))
    brokers = [node for _, at, node in found if not at.controller]
    translated = iter(translate(brokers, api_key == METADATA) if brokers else ())
    edits: list[_Edit] = []
    hidden: dict[int, Address] = {}
    for number, at, node in found:
        if number % _ADDRESSES_IN_A_SLICE == 0 and number:
            yield
        instead = None if at.controller else next(translated)
        if instead is None:
            hidden[number] = at
        elif instead != node[1:]:
            host, port = instead
            edits.append((at.host_at, at.host_end, compact_string(host) if at.compact else string(host)))
            edits.append((at.port_at, at.port_at + at.port_bytes, port.to_bytes(at.port_bytes, "big")))
    return edits, hidden


def _left_out(walker: Walker, hidden: Mapping[int, Address]) -> Iterator[_Edit]:
    """Elements of arrays are removed."""
    for nodes in walker.lists:
        last = nodes.first + nodes.elements - 1
        gone = [number for number in range(nodes.first, last + 1) if number in hidden]
        for number in gone:
            end = nodes.end if number == last else walker.addresses[number + 1].host_at - 4
            yield (hidden[number].host_at - 4, end, b"")
        if gone:
            yield (nodes.count_at, nodes.count_end, array_head(nodes.elements - len(gone), nodes.compact))


def _no_coordinator(at: Address, error_at: int) -> list[_Edit]:
    """What a broker answers while the coordinator is not alive."""
    return [
        (error_at, error_at + 2, INT16.pack(COORDINATOR_NOT_AVAILABLE)),
        (at.host_at - 4, at.host_at, INT32.pack(-1)),
        (at.host_at, at.host_end, compact_string("") if at.compact else string("")),
        (at.port_at, at.port_at + 4, INT32.pack(-1)),
    ]


def _no_leaders(walker: Walker, version: int, ids: Set[int]) -> Generator[None, None, list[_Edit]]:
    """What a broker answers for partitions whose leader is not alive. Raises Short unless the frame is whole."""
    walker.need(walker.frame_end)
    edits: list[_Edit] = []
    flexible = version >= _METADATA_FIRST_FLEXIBLE
    array = VARARRAY if flexible else ARRAY
    name, fixed, (_, partition), *rest = _topic(version)
    behind_leader: Program = ((SKIP, partition[0][1] - 10), *partition[1:])
    topics, pos = walker.count(array, walker.run(_cluster(version), walker.lists[len(walker.lists) - 1].end))
    for _ in range(topics):
        partitions, pos = walker.count(array, walker.run(((SKIP, 2), name, fixed), pos))
        for number in range(partitions):
            walker.need(pos + 10)
            if INT32.unpack_from(walker.buf, pos + 6)[0] in ids:
                edits.append((pos, pos + 2, INT16.pack(LEADER_NOT_AVAILABLE)))
                edits.append((pos + 6, pos + 10, INT32.pack(-1)))
            pos = walker.run(behind_leader, pos + 10)
            if number % SLICE == SLICE - 1:
                yield
        pos = walker.run(tuple(rest), pos)
        yield
    return edits


def _cluster(version: int) -> Program:
    """Between the brokers and the topics of a Metadata response: cluster id, controller id."""
    return () if version < 1 else (*_cluster_id(version), (SKIP, 4))


def _cluster_id(version: int) -> Program:
    if version < 2:
        return ()
    return ((VARLEN, 0) if version >= _METADATA_FIRST_FLEXIBLE else (STRING, 0),)


def _grown(edits: list[_Edit], start: int, end: int) -> Generator[None, None, int]:
    """By how much the edits between two positions lengthen the frame."""
    grown = 0
    for number, (at, to, new) in enumerate(edits, 1):
        if number % (4 * SLICE) == 0:
            yield
        if start <= at < end:
            grown += len(new) - (to - at)
    return grown


def read_cluster(version: int, frame: Buffer) -> tuple[list[NodeAddress], str | None]:
    """The brokers in a whole Metadata response of `version`, and the cluster's id; None before version 2, which lacks
    it. Raises WireError when it is malformed or cut."""
    apis.check_known(METADATA, version)
    walker = Walker(frame, len(frame), 4 + INT32.unpack_from(frame)[0])
    try:
        at = walker.run(_ADDRESS_WALKS[METADATA << 16 | version], body_start(walker, 0, METADATA, version))
        end = walker.run(_cluster_id(version), at)
    except Short as short:
        raise WireError("response_malformed", f"the Metadata response is truncated: {short}") from None
    cluster_id = _text(frame, at, end, version >= _METADATA_FIRST_FLEXIBLE) if version >= 2 else None
    return [_read(frame, one) for one in walker.addresses], cluster_id or None


def names_brokers(version: int, body: Buffer) -> bool:
    """Whether a Metadata response body begins with at least one broker; False for one that is cut."""
    at = 4 if version >= 3 else 0  # after the throttle time
    if version >= _METADATA_FIRST_FLEXIBLE:
        return read_uvarint(body, at, len(body))[0] > 1
    return len(body) >= at + 4 and bool(INT32.unpack_from(body, at)[0] > 0)


# ---- a topic that is hidden ------------------------------------------------------------------------------------------


def without_topic(version: int, frame: bytes, name: bytes) -> Generator[None, None, bytes]:
    """A whole Metadata response without this topic, in slices. It is unchanged if it does not name the topic, or if
    this version is not known. Raises WireError when it is malformed or cut."""
    walk = _ADDRESS_WALKS.get(METADATA << 16 | version)
    flexible = version >= _METADATA_FIRST_FLEXIBLE
    prefixed = (uvarint(len(name) + 1) if flexible else INT16.pack(len(name))) + name
    if walk is None or prefixed not in frame:
        return frame
    yield
    walker = Walker(frame, len(frame), len(frame))
    counted_at = yield from walker.walk(walk, body_start(walker, 0, METADATA, version))
    counted_at = walker.run(_cluster(version), counted_at)
    count, first = walker.count(VARARRAY if flexible else ARRAY, counted_at)
    counted = array_head(max(count - 1, 0), flexible)
    # A topic's only text is its name, and before its length is the topic's error.
    at = frame.find(prefixed, first)
    if at < 0:
        return frame
    end = yield from walker.walk(_topic(version), at)
    yield
    view = memoryview(frame)
    size = counted_at + len(counted) + at - 2 - first + len(frame) - end
    return b"".join((INT32.pack(size - 4), view[4:counted_at], counted, view[first : at - 2], view[end:]))


def _topic(version: int) -> Program:
    """A topic of a Metadata response, from its name on."""
    flexible = version >= _METADATA_FIRST_FLEXIBLE
    array, tags = (VARARRAY, ((TAGS, ()),)) if flexible else (ARRAY, ())
    numbers: Step = (array, ((SKIP, 4),))
    # Error, index, leader and its epoch; replicas, those in sync, those offline.
    partition = ((SKIP, 14 if version >= 7 else 10), *(numbers,) * (3 if version >= 5 else 2), *tags)
    # Its id, and whether it is internal; behind the partitions, what the client may do with it.
    fixed = 17 if version >= 10 else 1 if version >= 1 else 0
    name: Step = (VARLEN if flexible else STRING, 0)
    return (name, (SKIP, fixed), (array, partition), (SKIP, 4 if version >= 8 else 0), *tags)


# ---- ApiVersions -----------------------------------------------------------------------------------------------------


def clamp_api_versions(buf: Buffer, start: int, end: int, version: int) -> Rewritten | NeedMore | None:
    """Lower the highest versions of APIs whose responses are rewritten to what the table knows; None: nothing to do.

    Needs the response through its last API. Raises WireError ("unsupported_version") for an unknown layout, and when a
    broker offers only versions of such an API that are not known.
    """
    if end - start < _APIS_AT:
        return NeedMore(_APIS_AT)
    frame = bytearray(buf[start:end])
    frame[4:8] = bytes(4)  # the correlation id, in which the answers of a broker differ
    try:
        edits = (_too_high if len(frame) <= MAX_KEPT_BYTES else _too_high.__wrapped__)(bytes(frame), version)
    except Short as short:
        return NeedMore(short.wanted)
    if not edits:
        return None
    consumed = max(at for at, _ in edits) + 2
    head = bytearray(buf[start : start + consumed])
    for at, highest in edits:
        INT16.pack_into(head, at, highest)
    return Rewritten(bytes(head), consumed)


@lru_cache(maxsize=64)
def _too_high(frame: bytes, version: int) -> list[tuple[int, int]]:
    """Where the highest version of an API is in an ApiVersions response, and what it is lowered to. Kept, as brokers
    always answer the same and finding it takes 0.1 to 0.3 ms. Raises Short and WireError."""
    edits: list[tuple[int, int]] = []
    for api_key, (lowest, highest, at) in _offered(frame, 0, len(frame), version).items():
        known = version_range(api_key)
        if api_key not in _REWRITTEN_APIS or known is None or highest <= known[1]:
            continue
        if lowest > known[1]:
            raise WireError(
                "unsupported_version",
                f"the broker offers {api_name(api_key)} from version {lowest} on, kquota supports up to {known[1]}",
            )
        edits.append((at, known[1]))
    return edits


def read_api_versions(version: int, frame: Buffer) -> tuple[int, dict[int, tuple[int, int]]]:
    """(error code, API key -> (lowest, highest version)) of a whole ApiVersions response. Raises WireError."""
    try:
        offered = _offered(frame, 0, len(frame), version)
    except Short as short:
        raise WireError("response_malformed", f"the ApiVersions response is truncated: {short}") from None
    return INT16.unpack_from(frame, 8)[0], {key: found[:2] for key, found in offered.items()}


def _offered(buf: Buffer, start: int, end: int, version: int) -> dict[int, tuple[int, int, int]]:
    """API key -> (lowest, highest, position of highest). The header is always version 0. Raises Short or WireError."""
    if end - start < 4:
        raise Short(start + 14)
    walker = Walker(buf, end, start + 4 + INT32.unpack_from(buf, start)[0])
    walker.need(start + 10)
    if INT16.unpack_from(buf, start + 8)[0] == UNSUPPORTED_VERSION:
        version = 0  # whatever was asked for: the broker could not parse that version (KIP-511)
    apis.check_known(API_VERSIONS, version)
    count, pos = walker.count(VARARRAY if version >= 3 else ARRAY, start + 10)
    if count * 6 > walker.frame_end - pos or count > MAX_APIS:
        raise WireError("response_malformed", f"the ApiVersions response declares {count} APIs")
    found: dict[int, tuple[int, int, int]] = {}
    for _ in range(count):
        walker.need(pos + 6)
        api_key, lowest, highest = (INT16.unpack_from(buf, pos + offset)[0] for offset in (0, 2, 4))
        found[api_key] = (lowest, highest, pos + 4)
        pos += 6
        if version >= 3:
            pos = walker.run(_TAGS_ONLY, pos)
    return found
