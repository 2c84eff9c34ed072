"""What is read of a certificate, without a broker (with one: test_tls_brokers.py); and what is no certificate."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.net.tls.certificates import CertificateError, not_after_s, subject
from tests.support.examples import examples


def certificate(name: x509.Name, end: datetime) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    built = x509.CertificateBuilder(name, name, key.public_key(), 1).not_valid_before(datetime(2000, 1, 1, tzinfo=UTC))
    return built.not_valid_after(end).sign(key, hashes.SHA256()).public_bytes(Encoding.DER)


NAME = x509.Name([x509.NameAttribute(NameOID.EMAIL_ADDRESS, "a@b"), x509.NameAttribute(NameOID.COMMON_NAME, " x,y ")])
GOOD = certificate(NAME, datetime(2049, 12, 31, 23, 59, 59, tzinfo=UTC))


def test_prints_subject_as_java() -> None:
    # emailAddress has no name in RFC 2253: its OID, and an IA5String (tag 0x16) of 3 bytes
    assert subject(GOOD) == r"CN=\ x\,y\ ,1.2.840.113549.1.9.1=#1603614062"
    assert subject(certificate(x509.Name([]), datetime(2030, 1, 1, tzinfo=UTC))) == ""


@pytest.mark.parametrize("year", [2030, 2049, 2050, 9999])
def test_reads_expiry_in_both_spellings(year: int) -> None:
    """Two digits of the year up to 2049 (UTCTime), four from 2050 on (GeneralizedTime)."""
    end = datetime(year, 12, 31, 23, 59, 59, tzinfo=UTC)
    assert not_after_s(certificate(NAME, end)) == end.timestamp()


@settings(max_examples=examples(300))
@given(st.data())
def test_whatever_is_no_certificate_is_an_error_of_one_kind(data: st.DataObject) -> None:
    broken = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 4))):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(broken[: data.draw(st.integers(0, len(broken)))])
    for read in (subject, not_after_s):
        for der in (bytes(broken), cut):
            with contextlib.suppress(CertificateError):
                read(der)


def _der(tag: int, *contents: bytes) -> bytes:
    content = b"".join(contents)
    return bytes([tag, 0x82]) + len(content).to_bytes(2, "big") + content


def test_subjects_that_are_too_large_are_refused() -> None:
    """Of an attribute's type, the whole number has too many digits to be printed."""
    kind = _der(6, b"\x2b" + b"\xff" * 3000 + b"\x7f")
    name = _der(0x30, _der(0x31, _der(0x30, kind, _der(12, b"x"))))
    nothing = _der(0x30)
    with pytest.raises(CertificateError):
        subject(_der(0x30, _der(0x30, _der(2, b"1"), nothing, nothing, nothing, name, nothing)))
