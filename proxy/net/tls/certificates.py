"""What a certificate says: its subject as Java prints it, and its expiry. It reads DER (ITU-T X.690), as far as needed:
Java prints attributes without a name in RFC 2253 as the hexadecimal form of their *encoding*, which Python's ssl does
not report. OpenSSL has verified a certificate before it gets here."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final, NamedTuple

_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "2.5.4.9": "STREET",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
"""RFC 2253, section 2.3: all attributes that Java's X500Principal.getName() has names for."""
_TEXTS: Final = frozenset({12, 19, 20, 22, 27, 28, 30})
"""UTF8String, PrintableString, T61String, IA5String, GeneralString, UniversalString, BMPString."""
_SEQUENCE: Final = 0x30
_SET: Final = 0x31
_OID: Final = 6
_UTC_TIME: Final = 23
_VERSION: Final = 0xA0
_ESCAPED: Final = frozenset(',=+<>#;"\\')
MAX_SUBJECT_BYTES: Final = 4096
"""In DER. RFC 5280, appendix A.1: most attributes have at most 64 characters."""
MAX_OID_BYTES: Final = 128
_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_PEM: Final = re.compile(_BEGIN + r"[^-]+-----END CERTIFICATE-----")


class CertificateError(ValueError):
    """The certificate cannot be parsed."""


class EncryptedKeyError(ValueError):
    """A private key has a password."""


class _Value(NamedTuple):
    tag: int
    content: bytes
    encoding: bytes


def _values(data: bytes) -> Iterator[_Value]:
    position = 0
    while position < len(data):
        start = position
        if len(data) - position < 2:
            raise CertificateError("a DER value is truncated")
        tag, length = data[position], data[position + 1]
        position += 2
        if length & 0x80:
            count = length & 0x7F
            length = int.from_bytes(data[position : position + count], "big")
            position += count
        if not 0 <= length <= len(data) - position:
            raise CertificateError("a DER value is truncated")
        yield _Value(tag, data[position : position + length], data[start : position + length])
        position += length


def _inside(value: _Value, tag: int) -> list[_Value]:
    if value.tag != tag:
        raise CertificateError(f"expected a DER value with the tag {tag:#x}, not {value.tag:#x}")
    return list(_values(value.content))


def _to_be_signed(der: bytes) -> list[_Value]:
    """serialNumber, signature, issuer, validity, subject and so on (RFC 5280, section 4.1), without the version."""
    try:
        (certificate,) = _values(der)
        fields = _inside(_inside(certificate, _SEQUENCE)[0], _SEQUENCE)
        fields = fields[1:] if fields[0].tag == _VERSION else fields
        if len(fields) < 6:
            raise CertificateError("fields are missing")
    except (ValueError, IndexError) as error:
        raise CertificateError(f"not a certificate: {error}") from None
    return fields


def subject(der: bytes) -> str:
    """The subject of a certificate as Java's ``X500Principal.getName()`` prints it (RFC 2253): Kafka's name for the
    client before its mapping rules. Raises CertificateError."""
    whole = _to_be_signed(der)[4]
    if len(whole.content) > MAX_SUBJECT_BYTES:
        raise CertificateError(f"a subject of {len(whole.content)} bytes; at most {MAX_SUBJECT_BYTES} are read")
    names = _inside(whole, _SEQUENCE)
    return ",".join("+".join(_attribute(pair) for pair in _inside(name, _SET)) for name in reversed(names))


def _attribute(pair: _Value) -> str:
    try:
        kind, value = _inside(pair, _SEQUENCE)
    except ValueError as error:
        raise CertificateError(f"cannot read a name in the subject: {error}") from None
    if kind.tag != _OID:
        raise CertificateError("an attribute of the subject has no OID")
    oid = _dotted(kind.content)
    keyword = _KEYWORDS.get(oid)
    if keyword is None or value.tag not in _TEXTS:
        return f"{keyword or oid}=#{value.encoding.hex()}"
    # Whatever kind of string it is, Java decodes its bytes as UTF-8 here.
    text = value.content.decode("utf-8", "replace")
    start, end = len(text) - len(text.lstrip(" \r")), len(text.rstrip(" \r"))
    return f"{keyword}=" + "".join(
        "\\" + char if char in _ESCAPED or not start <= at < end else "\\00" if char == "\0" else char
        for at, char in enumerate(text)
    )


def _dotted(content: bytes) -> str:
    numbers = []
    number = 0
    for byte in content:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    if not numbers or len(content) > MAX_OID_BYTES:
        raise CertificateError("an attribute of the subject has an invalid OID")
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def valid_s(der: bytes) -> tuple[float, float]:
    """From when to when a certificate is valid, in seconds of Unix time. Raises CertificateError."""
    try:
        begin, end = map(_unix_s, _inside(_to_be_signed(der)[3], _SEQUENCE))
    except ValueError as error:
        raise CertificateError(f"a certificate without a readable validity: {error}") from None
    return begin, end


def _unix_s(time: _Value) -> float:
    text = time.content.decode("ascii")
    if time.tag == _UTC_TIME:  # two-digit years: 1950 to 2049 (RFC 5280, section 4.1.2.5.1)
        text = ("19" if text >= "5" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def in_pem(text: str) -> list[bytes]:
    """The certificates in a PEM file, as DER. Raises CertificateError where one cannot be decoded, or is truncated."""
    blocks = _PEM.findall(text)
    if text.count(_BEGIN) != len(blocks):
        raise CertificateError("a certificate is truncated: expected -----END CERTIFICATE----- behind each")
    try:
        return [ssl.PEM_cert_to_DER_cert(block) for block in blocks]
    except ValueError as error:
        raise CertificateError(f"cannot decode a certificate: {error}") from None
