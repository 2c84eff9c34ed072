"""Messages that the sidecar itself sends: answers to throttled fetches, and its own requests to a cluster."""

from __future__ import annotations

from typing import Final

from proxy.core.wire.apis import (
    API_VERSIONS,
    FETCH,
    METADATA,
    check_known,
    is_flexible,
    request_header_version,
    response_header_version,
    version_range,
)
from proxy.core.wire.primitives import INT16, INT32, compact_string, string
from proxy.core.wire.throttle import UNSUPPORTED_VERSION, patch_throttle

_NO_TAGS: Final = b"\0"
_EMPTY: Final = INT32.pack(0)
_EMPTY_COMPACT: Final = b"\1"
_NULL_COMPACT: Final = b"\0"
_NO_ERROR: Final = INT16.pack(0)
OWN_SOFTWARE: Final = ("kquota", "0")
"""The name and version of the sidecar as a client (KIP-511)."""


def framed(payload: bytes) -> bytes:
    """`payload` with its 4-byte size in front."""
    return INT32.pack(len(payload)) + payload


def response_frame(api_key: int, version: int, correlation_id: int, body: bytes, throttle_ms: int) -> bytes:
    """A whole response frame around a body, whose throttle_time_ms is raised to `throttle_ms` if it is below."""
    tags = _NO_TAGS if response_header_version(api_key, version) == 1 else b""
    frame = bytearray(framed(INT32.pack(correlation_id) + tags + body))
    if throttle_ms > 0:
        patch_throttle(frame, 0, len(frame), api_key, version, throttle_ms)
    return bytes(frame)


def empty_fetch_response(version: int, correlation_id: int, throttle_ms: int, session_id: int) -> bytes:
    """A whole FetchResponse frame of `version` without topics and without error.

    Version 0 has no throttle field, versions below 7 no session: there the arguments have no effect. Raises
    WireError for unknown versions.
    """
    check_known(FETCH, version)
    flexible = is_flexible(FETCH, version)
    return framed(
        INT32.pack(correlation_id)
        + (_NO_TAGS if flexible else b"")
        + (INT32.pack(throttle_ms) if version >= 1 else b"")
        + (_NO_ERROR + INT32.pack(session_id) if version >= 7 else b"")
        + (_EMPTY_COMPACT + _NO_TAGS if flexible else _EMPTY)
    )


def unsupported_api_versions_response(correlation_id: int) -> bytes:
    """A broker's answer to an ApiVersions request of a version that it does not have (KIP-511).

    Error 35 in the layout of version 0, with the versions of ApiVersions itself: the client retries with one of them.
    """
    lowest, highest = version_range(API_VERSIONS) or (0, 0)
    entry = INT16.pack(API_VERSIONS) + INT16.pack(lowest) + INT16.pack(highest)
    return framed(INT32.pack(correlation_id) + INT16.pack(UNSUPPORTED_VERSION) + INT32.pack(1) + entry)


def request_header(api_key: int, version: int, correlation_id: int, client_id: str) -> bytes:
    """A request header of the version that this API and version need."""
    header = INT16.pack(api_key) + INT16.pack(version) + INT32.pack(correlation_id)
    header_version = request_header_version(api_key, version)
    if header_version >= 1:
        header += string(client_id)
    return header + (_NO_TAGS if header_version == 2 else b"")


def metadata_request(version: int, correlation_id: int, client_id: str) -> bytes:
    """A whole Metadata request frame that asks for brokers and no topics; version 0 cannot express that."""
    check_known(METADATA, version)
    if version == 0:
        raise ValueError("Metadata version 0 cannot ask for no topics: an empty list means all of them")
    flexible = is_flexible(METADATA, version)
    body = _EMPTY_COMPACT if flexible else _EMPTY
    if version >= 4:
        body += b"\0"  # allow_auto_topic_creation
    if 8 <= version <= 10:
        body += b"\0"  # include_cluster_authorized_operations
    if version >= 8:
        body += b"\0"  # include_topic_authorized_operations
    return framed(request_header(METADATA, version, correlation_id, client_id) + body + (_NO_TAGS if flexible else b""))


def api_versions_request(
    version: int,
    correlation_id: int,
    client_id: str,
    software_name: str = OWN_SOFTWARE[0],
    software_version: str = OWN_SOFTWARE[1],
    cluster_id: str | None = None,
    node_id: int = -1,
) -> bytes:
    """A whole ApiVersions request frame. With a cluster and a node, both or neither, a broker that is another one
    answers version 5 with REBOOTSTRAP_REQUIRED (KIP-1242); older versions do not name them."""
    check_known(API_VERSIONS, version)
    body = compact_string(software_name) + compact_string(software_version) if version >= 3 else b""
    if version >= 5:
        body += (_NULL_COMPACT if cluster_id is None else compact_string(cluster_id)) + INT32.pack(node_id)
    body += _NO_TAGS if version >= 3 else b""
    return framed(request_header(API_VERSIONS, version, correlation_id, client_id) + body)
