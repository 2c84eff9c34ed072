"""Requests: the header of every API and version, and the few body fields that quotas need.

Positions are absolute indexes into the buffer. `frame` is the index of the 4-byte size; `end` is one past the bytes
that have arrived, which may be before or after the frame's own end. Nothing is copied but the client id.
"""

from __future__ import annotations

import struct
from typing import Final

from proxy.core.wire import apis, integers
from proxy.core.wire.apis import (
    FETCH,
    HEADERS,
    PRODUCE,
    UNKNOWN,
    request_header_version,
    version_range,
)
from proxy.core.wire.frames import MAX_FRAME_BYTES, MIN_REQUEST_BYTES, WireError, bad_size, diagnose
from proxy.core.wire.primitives import FRAME_PREFIX_BYTES, INT32, TAGS, Buffer, Program, read_uvarint
from proxy.core.wire.walk import Short, Walker

MAX_STRING_BYTES: Final = 32_767
"""Kafka's strings are no longer, compact ones included: brokers refuse them."""
MAX_HEADER_BYTES: Final = 40 * 1024
"""The longest request header: 14 bytes, a client id of at most 32767 bytes, and tagged fields."""
MAX_HEADER_TAGS: Final = 100
"""None has been defined yet. Twenty thousand empty ones fit into a header and would be walked over one by one."""

_FIXED_BYTES: Final = 14
"""size, api_key and api_version, correlation_id, client id's length"""
_TAGS_ONLY: Final[Program] = ((TAGS, ()),)
_UNKNOWN: Final = UNKNOWN
_NO_CLIENT_ID: Final = struct.Struct(">ihhi")
_NO_CLIENT_ID_BYTES: Final = _NO_CLIENT_ID.size  # 12

NO_ACKS_YET: Final = 1 << 16
_NO_ACKS_YET: Final = NO_ACKS_YET
_PREFIX_BYTES: Final = FRAME_PREFIX_BYTES

_MAX_CACHED_CLIENT_IDS: Final = 4096
_client_ids: dict[bytes, str] = {}


class RequestHeader:
    """The header of one request. `size` does not count the 4-byte prefix; `body` is the index of the body's first byte.

    `known` is False when the API or its version is not in the table: the header's common fields are right all the same,
    but `body` is only where the client id ends, as it is unknown whether tagged fields follow.
    """

    size: int
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str
    body: int
    known: bool


class RepeatedHeader:
    """A header that other requests of the same connection repeat: all of it but the size and the correlation id."""

    def __init__(self, header: RequestHeader, buf: Buffer, frame: int) -> None:
        """`header` is the one at `frame`."""
        self.api_version = header.api_version
        self.body = header.body - frame
        """Where the body begins, in a frame at 0."""
        self._key_and_version = bytes(buf[frame + 4 : frame + 8])
        self._client_id = bytes(buf[frame + 12 : header.body])

    def length(self, buf: Buffer, end: int) -> int:
        """Length of the request that `buf[:end]` begins, if it has this header; otherwise 0."""
        if end <= self.body or not integers.same(buf, 4, self._key_and_version):
            return 0
        return _PREFIX_BYTES + integers.int32(buf, 0) if integers.same(buf, 12, self._client_id) else 0


def _header(
    size: int, api_key: int, api_version: int, correlation_id: int, client_id: str, body: int, known: bool
) -> RequestHeader:
    # Not by calling the class, which in compiled code would take longer than everything else here.
    header = RequestHeader.__new__(RequestHeader)
    header.size = size
    header.api_key = api_key
    header.api_version = api_version
    header.correlation_id = correlation_id
    header.client_id = client_id
    header.body = body
    header.known = known
    return header


def parse_request_header(
    buf: Buffer, frame: int, end: int, max_frame_bytes: int = MAX_FRAME_BYTES
) -> RequestHeader | None:
    """The header of the request at `frame`, or None when more bytes are needed.

    Works for every API and version, unknown ones included, because the client id is never compact (KIP-482). Raises
    WireError for impossible sizes, headers that do not fit into their frame, and other protocols.
    """
    if end - frame < _FIXED_BYTES:
        return _parse_short(buf, frame, end, max_frame_bytes)
    size = integers.int32(buf, frame)
    if not 10 <= size <= max_frame_bytes:
        return _parse_short(buf, frame, end, max_frame_bytes)
    api_key, api_version = integers.int16(buf, frame + 4), integers.int16(buf, frame + 6)
    headers, names = HEADERS, _client_ids
    header_version = headers[apis.place(api_key, api_version)]
    if header_version == _UNKNOWN:  # only what all headers have in common is parsed
        _check_protocol(buf, frame)
    correlation_id, length = integers.int32(buf, frame + 8), integers.int16(buf, frame + 12)
    pos = frame + _FIXED_BYTES
    if header_version == 0:
        return _parse_short(buf, frame, end, max_frame_bytes)
    if length > 0:
        body = pos + length
        if body > frame + 4 + size:
            raise _cut_header(size)
        if body > end:
            return None
        raw = integers.piece(buf, pos, body)
        client_id = names.get(raw)
        if client_id is None:
            client_id = _decode_client_id(raw)
        pos = body
    elif length < -1:
        raise WireError("header_malformed", f"the client id's length is {length}, expected -1 or more")
    else:
        client_id = ""
    if header_version == 2:
        if pos >= frame + 4 + size:
            raise _cut_header(size)
        if pos >= end:
            return None
        if integers.uint8(buf, pos) == 0:  # no tagged fields: none has been defined for this header yet
            pos += 1
        else:
            after = _skip_header_tags(buf, pos, frame, end, size)
            if after is None:
                return None
            pos = after
    return _header(size, api_key, api_version, correlation_id, client_id, pos, header_version != _UNKNOWN)


def _check_protocol(buf: Buffer, frame: int) -> None:
    other = diagnose(buf[frame : frame + 4])
    if other is not None:
        raise WireError(*other)


def _parse_short(buf: Buffer, frame: int, end: int, max_frame_bytes: int) -> RequestHeader | None:
    """Fewer than 14 bytes so far, a size out of range, or the one header without a client id."""
    if end - frame < FRAME_PREFIX_BYTES:
        return None
    size = INT32.unpack_from(buf, frame)[0]
    if not MIN_REQUEST_BYTES <= size <= max_frame_bytes:
        raise bad_size(buf, frame, size, MIN_REQUEST_BYTES, max_frame_bytes)
    if end - frame < _NO_CLIENT_ID_BYTES:
        return None
    _, api_key, api_version, correlation_id = _NO_CLIENT_ID.unpack_from(buf, frame)
    if request_header_version(api_key, api_version) == 0:
        return _header(size, api_key, api_version, correlation_id, "", frame + _NO_CLIENT_ID_BYTES, True)
    if size < _FIXED_BYTES - FRAME_PREFIX_BYTES:
        raise _cut_header(size)
    return None


def _cut_header(size: int) -> WireError:
    return WireError("header_malformed", f"the request header does not fit into its frame of {size} bytes")


def _decode_client_id(raw: bytes) -> str:
    """UTF-8 with replacement characters, as Java decodes it; cached, because clients repeat it in every request."""
    text = raw.decode("utf-8", "replace")
    if len(raw) <= 256:
        if len(_client_ids) >= _MAX_CACHED_CLIENT_IDS:
            _client_ids.clear()
        _client_ids[raw] = text
    return text


def _skip_header_tags(buf: Buffer, pos: int, frame: int, end: int, size: int) -> int | None:
    """The position after the header's tagged fields, or None when more bytes are needed."""
    longest = min(frame + FRAME_PREFIX_BYTES + size, frame + MAX_HEADER_BYTES)
    try:
        return Walker(buf, end, longest, MAX_HEADER_TAGS).run(_TAGS_ONLY, pos)
    except Short:
        return None
    except WireError as error:
        raise WireError("header_malformed", f"the tagged fields of a request header: {error}") from error


def _acks_at(buf: Buffer, body: int, end: int, version: int) -> int:
    """Where the `acks` of a Produce request begin; -1 when more bytes are needed."""
    if not 0 <= version <= _PRODUCE_MAX:
        apis.check_known(PRODUCE, version)
    if version >= 9:  # compact: length + 1, 0 is null
        if body >= end:
            return -1
        length = integers.uint8(buf, body)
        if length < 0x80:
            pos = body + (length if length else 1)
        else:
            length, pos = integers.uvarint(buf, body, end)
            if pos == -2:
                raise WireError("request_malformed", "the transactional id's length is not a number")
            if pos == -1:
                return -1
            if length - 1 > MAX_STRING_BYTES:
                text = f"the transactional id's length is {length - 1}, expected at most {MAX_STRING_BYTES}"
                raise WireError("request_malformed", text)
            pos += length - 1
    elif version >= 3:
        if body + 2 > end:
            return -1
        length = integers.int16(buf, body)
        if length < -1:
            raise WireError("request_malformed", f"the transactional id's length is {length}, expected -1 or more")
        pos = body + 2 + (length if length > 0 else 0)
    else:
        pos = body
    return pos if pos + 2 <= end else -1


def produce_acks(buf: Buffer, body: int, end: int, version: int) -> int:
    """The `acks` of a Produce request (0: the broker will not answer), or NO_ACKS_YET when more bytes are needed.

    Raises WireError for versions that are not in the table: a wrong guess would lose track of the responses.
    """
    at = _acks_at(buf, body, end, version)
    return _NO_ACKS_YET if at < 0 else integers.int16(buf, at)


def produce_timeout(buf: Buffer, body: int, end: int, version: int) -> int | None:
    """The `timeout_ms` of a Produce request; None when more bytes are needed. Raises WireError as `produce_acks`."""
    at = _acks_at(buf, body, end, version)
    return None if at < 0 or at + 6 > end else integers.int32(buf, at + 2)


def int32_after_names(buf: Buffer, body: int, end: int, names: int, compact: bool) -> int | None:
    """The 32-bit integer that follows so many names at the beginning of a body; None when more bytes are needed."""
    at = body
    for _ in range(names):
        if compact:
            length, at = read_uvarint(buf, at, end)
            if at < 0:
                return None
            at += max(length - 1, 0)
        elif at + 2 <= end:
            at += 2 + max(integers.int16(buf, at), 0)
        else:
            return None
    return integers.int32(buf, at) if at + 4 <= end else None


class FetchFields:
    """The head of a Fetch request. Positions (`*_at`) are absolute, -1 when the version lacks the field.

    Without a session, `session_id` is 0 and `session_epoch` -1 (KIP-227). `rest` is where the topics begin.
    """

    min_bytes: int
    min_bytes_at: int
    max_bytes: int | None
    max_bytes_at: int
    session_id: int
    session_epoch: int
    session_epoch_at: int
    rest: int


_PRODUCE_MAX: Final = (version_range(PRODUCE) or (0, 0))[1]
_FETCH_MAX: Final = (version_range(FETCH) or (0, 0))[1]


def parse_fetch(buf: Buffer, body: int, end: int, version: int) -> FetchFields | None:
    """The fields of a Fetch request that limit its answer; None: more bytes are needed, or the version is unknown."""
    if not 0 <= version <= _FETCH_MAX:
        return None
    # replica_id (up to version 14), max_wait_ms, min_bytes, max_bytes (from 3 on), isolation_level (int8, from 4 on),
    # session_id and session_epoch (from 7 on)
    wait_at = body if version >= 15 else body + 4
    rest = wait_at + (21 if version >= 7 else 13 if version >= 4 else 12 if version == 3 else 8)
    if rest > end:
        return None
    at = wait_at + 4
    fields = FetchFields.__new__(FetchFields)
    fields.min_bytes = integers.int32(buf, at)
    fields.min_bytes_at = at
    fields.max_bytes = None
    fields.max_bytes_at = -1
    fields.session_id = 0
    fields.session_epoch = -1
    fields.session_epoch_at = -1
    if version >= 3:
        fields.max_bytes = integers.int32(buf, at + 4)
        fields.max_bytes_at = at + 4
    if version >= 7:
        fields.session_id = integers.int32(buf, at + 9)
        fields.session_epoch = integers.int32(buf, at + 13)
        fields.session_epoch_at = at + 13
    fields.rest = rest
    return fields


def lower_fetch(buf: bytearray | memoryview, fields: FetchFields, max_bytes: int) -> None:
    """Lower max_bytes (and min_bytes with it, as ReplicaManager does) in place, if the request asks for more."""
    if fields.max_bytes is not None and max_bytes < fields.max_bytes:
        lowered = max_bytes if max_bytes > 1 else 1
        integers.put_int32(buf, fields.max_bytes_at, lowered)
        if fields.min_bytes > lowered:
            integers.put_int32(buf, fields.min_bytes_at, lowered)
