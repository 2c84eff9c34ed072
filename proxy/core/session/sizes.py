"""How much of a request is inspected, and how large it may be: decided by its head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from proxy.core.errors import CloseReason, SessionError
from proxy.core.wire.apis import API_VERSIONS, api_name
from proxy.core.wire.frames import WireError, diagnose
from proxy.core.wire.requests import RequestHeader
from proxy.core.wire.sasl import SASL_APIS

FIRST_BYTES: Final = 16
"""Enough of a connection's beginning to recognise its protocol."""
BEGINNING_APIS: Final = frozenset({API_VERSIONS, *SASL_APIS})


@dataclass(frozen=True, slots=True)
class SizeLimits:
    """Size limits, in bytes, for what a peer sends; each for one connection."""

    max_frame_bytes: int = 104_857_600
    """Kafka's socket.request.max.bytes."""
    max_response_bytes: int = 2**31 - 1
    max_header_bytes: int = 40_960
    """A request's header: client-id and tagged fields."""
    pre_auth_max_bytes: int = 524_288
    """ApiVersions and SASL requests before any other: Kafka's sasl.server.max.receive.size."""


DEFAULT_SIZES: Final = SizeLimits()


def header_too_large(start: int, end: int, header: RequestHeader | None, sizes: SizeLimits) -> WireError:
    """The error for a header above the limit, of which only the bytes up to `end` have arrived."""
    length = (end if header is None else header.body) - start
    text = f"the request's header has at least {length} bytes; the limit is {sizes.max_header_bytes}"
    return WireError("header_too_large", text)


def is_established(header: RequestHeader, sizes: SizeLimits) -> bool:
    """Whether this request ends the phase before and during authentication, whose requests are small.

    A broker that needs authentication closes the connection on this request if there has been none. Raises WireError
    for a request of the phase that is too large.
    """
    if header.api_key not in BEGINNING_APIS:
        return True
    if header.size > sizes.pre_auth_max_bytes:
        text = f"{api_name(header.api_key)} request of {header.size} bytes; the limit is {sizes.pre_auth_max_bytes}"
        raise WireError("sasl_too_large" if header.api_key in SASL_APIS else "pre_auth_too_large", text)
    return False


def unreadable(error: WireError, first: bytes) -> SessionError:
    """Why the client's connection ends over bytes that cannot be parsed; `first` are its first ones, if these."""
    if error.reason in (CloseReason.UNSUPPORTED_VERSION, CloseReason.BROKER_MALFORMED):  # in an answer to a question
        return SessionError(CloseReason(error.reason), str(error), kind=error.reason)
    known = diagnose(first)
    if known is not None:
        kind, text = known
        return SessionError(CloseReason.CLIENT_MALFORMED, text, kind=kind)
    return SessionError(CloseReason.CLIENT_MALFORMED, str(error), kind=error.reason)


def malformed_response(error: WireError) -> SessionError:
    """Why the connection ends over a response that cannot be parsed, or in a version that is not known."""
    known = error.reason != CloseReason.UNSUPPORTED_VERSION
    reason = CloseReason.BROKER_MALFORMED if known else CloseReason.UNSUPPORTED_VERSION
    return SessionError(reason, str(error), kind=error.reason)
