"""The client's name in SASL exchanges: SaslHandshake, SaslAuthenticate, and the mechanisms' first messages.

Only names are kept. Anything else in a message (passwords, proofs, tokens) is read in place and not copied into
anything that outlives the call; no error text contains it.
"""

from __future__ import annotations

import base64
import json
import re
from struct import Struct
from struct import error as struct_error
from typing import Final, NamedTuple

from proxy.core.wire.frames import WireError
from proxy.core.wire.primitives import INT16, INT32, Buffer, read_uvarint

SASL_HANDSHAKE: Final = 17
SASL_AUTHENTICATE: Final = 36
SASL_APIS: Final = frozenset({SASL_HANDSHAKE, SASL_AUTHENTICATE})
ILLEGAL_SASL_STATE: Final = 34
"""Error of a broker that expects no SASL: on a listener without it, or after the login."""
MAX_SASL_BYTES: Final = 524_288
"""Largest request or raw token, as Kafka's sasl.server.max.receive.size."""
_FLEXIBLE_VERSION: Final = 2
"""SaslAuthenticate from this version on has compact fields (KIP-482)."""
_LIFETIME_VERSION: Final = 1
"""From this version on SaslAuthenticate has the session's lifetime (KIP-368)."""

MAX_OAUTH_BYTES: Final = 65_536
"""An OAUTHBEARER message with its token: parsing more would hold up other connections for milliseconds."""

_INT64: Final = Struct(">q")

# Possessive quantifiers (++, *+) keep nothing to backtrack to: messages may have half a megabyte.
_NAME: Final = rb"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]++|=2C|=3D)++"
"""RFC 5802 saslname as far as Kafka accepts it: no comma, `=` only as =3D and =2C, no byte above 7F."""
_VALUE: Final = rb"[\x01-\x2b\x2d-\x7f]++"
_SCRAM_FIRST: Final = re.compile(
    rb"n,(?:a="
    + _NAME
    + rb")?,(?:m="
    + _VALUE
    + rb",)?n=("
    + _NAME
    + rb"),r=[\x21-\x2b\x2d-\x7e]++((?:,[A-Za-z]++="
    + _VALUE
    + rb")*+)"
)
"""RFC 5802 client-first-message without channel binding (`n,`), the only one that Kafka accepts."""
_OAUTH_FIRST: Final = re.compile(rb"n,(?:a=" + _NAME + rb")?,(\x01(?:[A-Za-z]++=[\x21-\x7e \t\r\n]++\x01)*+)\x01")
"""RFC 7628 client-first-message: key/value pairs, one of which is `auth`."""
_BLANKS: Final = "".join(map(chr, range(0x21)))
"""What Java's `String.trim` removes."""
_HALVES: Final = re.compile(r"[\ud800-\udfff]")
"""Unpaired surrogates, which no UTF-8 text contains."""
_BEFORE_OBJECT: Final = b"\xef\xbb\xbf\xfe\xff\0 \t\r\n"
"""Byte order marks, blanks, and the zeros of UTF-16 and UTF-32, all of which Jackson accepts."""
_STANDARD: Final = bytes.maketrans(b"-_", b"+/")
UNREADABLE: Final = "its message cannot be read"
PLAIN_FAULT: Final = "its message does not follow RFC 4616, or its name is not UTF-8"
_BEARER: Final = re.compile(rb"bearer ++([-_~+/.A-Za-z0-9]++=*+)", re.IGNORECASE)


class SaslResponse(NamedTuple):
    """The relevant part of a SaslAuthenticate response (or of a raw token from the broker)."""

    error: int
    token: bytes
    lifetime_ms: int
    """How long the broker lets the session live from now; 0: without limit."""


def mechanism(body: Buffer) -> str | None:
    """The mechanism that a SaslHandshake request (version 0 or 1) asks for; None if it cannot be parsed."""
    if len(body) < INT16.size:
        return None
    (length,) = INT16.unpack_from(body)
    name = bytes(body[2 : 2 + length]) if length > 0 else b""
    return name.decode("ascii", "replace") if name and len(name) == length else None


def error_code(body: Buffer) -> int:
    """The error of a SaslHandshake response. Raises WireError."""
    if len(body) < INT16.size:
        raise WireError("sasl_malformed", "the SaslHandshake response has no error code")
    (error,) = INT16.unpack_from(body)
    return int(error)


def client_token(version: int, body: Buffer) -> Buffer | None:
    """The mechanism's message in a SaslAuthenticate request body, not copied; None if it cannot be parsed."""
    try:
        start, end = _sized(version, body, 0, INT32)
    except (ValueError, struct_error):
        return None
    return body[start:end]


def answer(version: int, body: Buffer) -> SaslResponse:
    """Parse a SaslAuthenticate response body. Raises WireError, whose text contains nothing of it."""
    try:
        (error,) = INT16.unpack_from(body)
        _, at = _sized(version, body, INT16.size, INT16)  # error_message
        start, end = _sized(version, body, at, INT32)
        lifetime_ms = _INT64.unpack_from(body, end)[0] if version >= _LIFETIME_VERSION else 0
    except (ValueError, struct_error):
        raise WireError("sasl_malformed", "a SaslAuthenticate response that ends before its fields do") from None
    return SaslResponse(int(error), bytes(body[start:end]), max(int(lifetime_ms), 0))


def _sized(version: int, body: Buffer, at: int, width: Struct) -> tuple[int, int]:
    """Where the string or the bytes at `at` begin and end; null is empty. Raises ValueError, struct.error."""
    if version >= _FLEXIBLE_VERSION:
        length, start = read_uvarint(body, at, len(body))
        if start < 0:
            raise ValueError("it ends inside a length")
        length -= 1
    else:
        (length,) = width.unpack_from(body, at)
        start = at + width.size
    end = start + max(length, 0)
    if end > len(body):
        raise ValueError("it ends inside a field")
    return start, end


# ---- the mechanisms' first messages ---------------------------------------------------------------------------------


def plain_name(token: Buffer) -> str | None:
    """The authentication identity of PLAIN (RFC 4616: [authzid] NUL authcid NUL password), which is Kafka's principal.

    Kafka accepts no other authorization identity than that one (PlainSaslServer). None if the message is malformed, or
    the name is empty or not UTF-8: Kafka would put the same replacement character in many such names.
    """
    parts = bytes(token).split(b"\0", 3)
    try:
        return parts[1].decode("utf-8") or None if len(parts) == 3 else None
    except UnicodeDecodeError:
        return None


def scram_name(token: Buffer) -> tuple[str, bool] | None:
    """(name, whether it is the id of a delegation token) of a SCRAM client-first-message (RFC 5802, KIP-48)."""
    found = _SCRAM_FIRST.fullmatch(bytes(token))
    if found is None:
        return None
    name = found[1].replace(b"=2C", b",").replace(b"=3D", b"=").decode("ascii")
    return name, _last(found[2], b",", b"tokenauth").lower() == b"true"


def oauth_claim(token: Buffer, claim: str) -> tuple[str | None, str | None]:
    """(name, fault): the claim of the JSON web token (RFC 7519) in an OAUTHBEARER client-first-message (RFC 7628).

    A token may show no name: it is opaque, or lacks the claim. It has a fault if it is malformed in such a way that
    different readers find different names in it, or none; the fault says in which way, without showing its content. The
    token's signature is verified by the broker, which has to accept it before anything here is believed.

    Of two members with the same name the last one counts (as in Jackson; jose4j refuses them). Blanks around a name are
    not part of it (`ClaimValidationUtils`).
    """
    if len(token) > MAX_OAUTH_BYTES:
        return None, f"its first message has more than {MAX_OAUTH_BYTES} bytes"
    found = _OAUTH_FIRST.fullmatch(bytes(token))
    if found is None:
        return None, "its first message does not follow RFC 7628"
    bearer = _BEARER.fullmatch(_last(found[1], b"\1", b"auth"))
    if bearer is None:
        return None, "its first message has no bearer token"
    parts = bearer[1].split(b".")
    if len(parts) != 3:
        return None, None  # opaque
    try:
        claims = json.loads(_base64(parts[1]).decode("utf-8"))
    except (ValueError, RecursionError):
        if not _begins_like_an_object(parts[1]):
            return None, None  # opaque, despite its dots
        return None, "the token's claims are not exactly JSON in base64 and UTF-8, without a byte order mark"
    if not isinstance(claims, dict):
        return None, None
    if claim not in claims:
        return None, None
    name = claims[claim]
    if not isinstance(name, str):
        return None, f"the token's claim {claim} is not a string"
    name = name.strip(_BLANKS)
    if not name:
        return None, f"the token's claim {claim} is blank"
    return (None, f"the token's claim {claim} has an unpaired surrogate") if _HALVES.search(name) else (name, None)


def _last(pairs: bytes, separator: bytes, key: bytes) -> bytes:
    """The value of the last pair with this key, as in Kafka; empty if there is none. A separator is before each."""
    _, found, rest = pairs.rpartition(separator + key + b"=")
    return rest.partition(separator)[0] if found else b""


def _base64(part: bytes) -> bytes:
    """Decode a part of a token. Raises ValueError.

    Accepts both alphabets, as readers of either exist (Kafka's own for unsecured tokens accepts `+` and `/`). There is
    no padding: Kafka accepts equals signs only at the end of the whole token.
    """
    return base64.b64decode(part.translate(_STANDARD) + b"=" * (-len(part) % 4), validate=True)


def _begins_like_an_object(part: bytes) -> bool:
    """Whether any JSON reader, however lenient, might find an object in this part of a token."""
    text = re.sub(rb"[^A-Za-z0-9+/]", b"", part.translate(_STANDARD))
    text = text[: -1 if len(text) % 4 == 1 else None]
    return base64.b64decode(text + b"=" * (-len(text) % 4)).lstrip(_BEFORE_OBJECT).startswith(b"{")
