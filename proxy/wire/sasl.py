"""What SASL exchanges show of a client's name: SaslHandshake, SaslAuthenticate, and the mechanisms' first messages.

Only names are kept. What else a message carries (passwords, proofs, tokens) is looked at where it lies and not copied
into anything that outlives the call; no error text shows it.
"""

from __future__ import annotations

import base64
import json
import re
from struct import Struct
from struct import error as struct_error
from typing import Final, NamedTuple

from proxy.wire.frames import WireError
from proxy.wire.primitives import Buffer, read_uvarint

SASL_HANDSHAKE: Final = 17
SASL_AUTHENTICATE: Final = 36
SASL_APIS: Final = frozenset({SASL_HANDSHAKE, SASL_AUTHENTICATE})
ILLEGAL_SASL_STATE: Final = 34
"""Error of a broker that expects no SASL: on a listener without it, or when it is over."""
MAX_SASL_BYTES: Final = 524_288
"""Largest request or raw token, as Kafka's sasl.server.max.receive.size."""
_FLEXIBLE_VERSION: Final = 2
"""SaslAuthenticate from this version on has compact fields (KIP-482)."""
_LIFETIME_VERSION: Final = 1
"""SaslAuthenticate from this version on tells how long the session lives (KIP-368)."""

_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")
_INT64: Final = Struct(">q")

_NAME: Final = rb"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
"""RFC 5802 saslname as far as Kafka takes it: no comma, `=` only as =3D and =2C, no byte above 7F."""
_VALUE: Final = rb"[\x01-\x2b\x2d-\x7f]+"
_SCRAM_FIRST: Final = re.compile(
    rb"n,(?:a="
    + _NAME
    + rb")?,(?:m="
    + _VALUE
    + rb",)?n=("
    + _NAME
    + rb"),r=[\x21-\x2b\x2d-\x7e]+((?:,[A-Za-z]+="
    + _VALUE
    + rb")*)"
)
"""RFC 5802 client-first-message without channel binding (`n,`), which is all that Kafka takes."""
_OAUTH_FIRST: Final = re.compile(rb"n,(?:a=" + _NAME + rb")?,\x01((?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01)*)\x01")
"""RFC 7628 client-first-message: key/value pairs, one of which is `auth`."""
_BLANKS: Final = "".join(map(chr, range(0x21)))
"""What Java's `String.trim` takes away."""
_HALVES: Final = re.compile(r"[\ud800-\udfff]")
"""Surrogates that are left alone: no text in UTF-8 has them."""
_BEFORE_OBJECT: Final = b"\xef\xbb\xbf\xfe\xff\0 \t\r\n"
"""Byte order marks, blanks, and the zeros of UTF-16 and UTF-32, all of which Jackson reads."""
_STANDARD: Final = bytes.maketrans(b"-_", b"+/")
UNREADABLE: Final = "its message cannot be read"
PLAIN_FAULT: Final = "its message is not as in RFC 4616, with a name in UTF-8"
_BEARER: Final = re.compile(rb"bearer +([-_~+/.A-Za-z0-9]+=*)", re.IGNORECASE)


class SaslResponse(NamedTuple):
    """A SaslAuthenticate response (or a raw token from the broker), as far as it matters."""

    error: int
    token: bytes
    lifetime_ms: int
    """How long the broker lets the session live from now; 0: without limit."""


def mechanism(body: Buffer) -> str | None:
    """The mechanism that a SaslHandshake request (version 0 or 1) asks for; None if it cannot be read."""
    if len(body) < _INT16.size:
        return None
    (length,) = _INT16.unpack_from(body)
    name = bytes(body[2 : 2 + length]) if length > 0 else b""
    return name.decode("ascii", "replace") if name and len(name) == length else None


def error_code(body: Buffer) -> int:
    """The error of a SaslHandshake response. Raises WireError."""
    if len(body) < _INT16.size:
        raise WireError("sasl_malformed", "a SaslHandshake response without an error code")
    (error,) = _INT16.unpack_from(body)
    return int(error)


def client_token(version: int, body: Buffer) -> Buffer | None:
    """The mechanism's message in a SaslAuthenticate request body, not copied; None if it cannot be read."""
    try:
        start, end = _sized(version, body, 0, _INT32)
    except (ValueError, struct_error):
        return None
    return body[start:end]


def answer(version: int, body: Buffer) -> SaslResponse:
    """A SaslAuthenticate response body. Raises WireError, which shows nothing of it."""
    try:
        (error,) = _INT16.unpack_from(body)
        _, at = _sized(version, body, _INT16.size, _INT16)  # error_message
        start, end = _sized(version, body, at, _INT32)
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


# ---- what the mechanisms' first messages say ------------------------------------------------------------------------


def plain_name(token: Buffer) -> str | None:
    """The authentication identity of PLAIN (RFC 4616: [authzid] NUL authcid NUL password), which is Kafka's principal.

    Kafka takes no other authorization identity than that one (PlainSaslServer). None where the message is not like
    this, or the name is empty or not UTF-8: Kafka would see another character there, the same one for many names.
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
    extensions = dict(pair.split(b"=", 1) for pair in found[2].split(b",")[1:])  # of equal ones the last, as in Kafka
    return name, extensions.get(b"tokenauth", b"").lower() == b"true"


def oauth_name(token: Buffer, claim: str) -> str | None:
    """The name alone of `oauth_claim`."""
    return oauth_claim(token, claim)[0]


def oauth_claim(token: Buffer, claim: str) -> tuple[str | None, str | None]:
    """(name, fault): the claim of the JSON web token (RFC 7519) in an OAUTHBEARER client-first-message (RFC 7628).

    A token may show no name: it is opaque, or has no such claim. It is a fault where it is not what it should be, so
    that one reader finds another name in it than the next, or none: the fault says in what, and shows nothing of it.
    The token's signature is the broker's business, which has to accept it before anything here is believed.

    Of two members of the same name the last one counts (Jackson; jose4j refuses them). Blanks around a name do not
    belong to it (`ClaimValidationUtils`).
    """
    found = _OAUTH_FIRST.fullmatch(bytes(token))
    if found is None:
        return None, "its first message is not as in RFC 7628"
    pairs = dict(pair.split(b"=", 1) for pair in found[1].split(b"\1")[:-1])  # of equal ones the last, as in Kafka
    bearer = _BEARER.fullmatch(pairs.get(b"auth", b""))
    if bearer is None:
        return None, "its first message has no bearer token"
    parts = bearer[1].split(b".")
    if len(parts) != 3:
        return None, None  # opaque
    try:
        claims = json.loads(_base64(parts[1]).decode("utf-8"))
    except (ValueError, RecursionError):
        if not _begins_like_an_object(parts[1]):
            return None, None  # opaque, in spite of its dots
        return None, "the token's claims are not JSON in base64 and UTF-8, without a byte order mark, from end to end"
    if not isinstance(claims, dict):
        return None, None
    if claim not in claims:
        return None, None
    name = claims[claim]
    if not isinstance(name, str):
        return None, f"the token's claim {claim} is no string"
    name = name.strip(_BLANKS)
    if not name:
        return None, f"the token's claim {claim} is blank"
    return (None, f"the token's claim {claim} has half a character") if _HALVES.search(name) else (name, None)


def _base64(part: bytes) -> bytes:
    """What a part of a token stands for. Raises ValueError.

    Both alphabets, as there are readers of either (Kafka's own one of unsecured tokens takes `+` and `/`). There is no
    padding: Kafka takes equals signs nowhere but at the end of the whole token.
    """
    return base64.b64decode(part.translate(_STANDARD) + b"=" * (-len(part) % 4), validate=True)


def _begins_like_an_object(part: bytes) -> bool:
    """Whether any reader of JSON, however much it forgives, may find an object in this part of a token."""
    text = re.sub(rb"[^A-Za-z0-9+/]", b"", part.translate(_STANDARD))
    text = text[: -1 if len(text) % 4 == 1 else None]
    return base64.b64decode(text + b"=" * (-len(text) % 4)).lstrip(_BEFORE_OBJECT).startswith(b"{")
