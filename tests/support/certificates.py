"""Certificates for tests: an authority of their own, brokers on 127.0.0.1, clients with names."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from proxy.net.tls.contexts import KeyPair


class Issued(NamedTuple):
    chain: Path
    key: Path
    both: Path
    """Key and chain in one file, as Kafka's keystores of type PEM want it."""

    @property
    def pair(self) -> KeyPair:
        """As the sidecar is given it."""
        return KeyPair(self.chain, self.key)


class Authority:
    """An authority that issues certificates into a directory, the one of before if there was one."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.certificate = directory / "authority.pem"
        key = directory / "authority.key.pem"
        if key.exists():
            self._ca = trustme.CA.from_pem(self.certificate.read_bytes(), key.read_bytes())
        else:
            self._ca = trustme.CA()
            self._ca.cert_pem.write_to_path(self.certificate)
            self._ca.private_key_pem.write_to_path(key)

    def issue(
        self,
        name: str,
        *hosts: str,
        common_name: str | None = None,
        expired: bool = False,
        begins: datetime | None = None,
    ) -> Issued:
        """A certificate for these host names and addresses (`name` is the files' name), good for servers and clients;
        its subject is `CN=<common_name>,OU=tests,O=kquota`. An expired one was good until yesterday."""
        leaf = self._ca.issue_cert(
            *(hosts or ("client.invalid",)),
            common_name=common_name,
            organization_name="kquota",
            organization_unit_name="tests",
            not_before=begins,
            not_after=datetime.now(UTC) - timedelta(days=1) if expired else None,
        )
        chain = b"".join(part.bytes() for part in leaf.cert_chain_pems)
        return self._write(name, serialization.load_pem_private_key(leaf.private_key_pem.bytes(), None), chain)

    def issue_subject(self, name: str, subject: x509.Name, *hosts: str) -> Issued:
        """A certificate with just this subject, and for these hosts, however odd."""
        authority = x509.load_pem_x509_certificate(self._ca.cert_pem.bytes())
        signer: Any = serialization.load_pem_private_key(self._ca.private_key_pem.bytes(), None)
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder(authority.subject, subject, key.public_key(), x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
        )
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName([*map(x509.DNSName, hosts)]), critical=False)
        certificate = builder.sign(signer, hashes.SHA256())
        return self._write(name, key, certificate.public_bytes(serialization.Encoding.PEM))

    def _write(self, name: str, key: Any, chain: bytes) -> Issued:
        form = serialization.PrivateFormat.PKCS8
        pkcs8 = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
        issued = Issued(*(self._directory / f"{name}.{kind}.pem" for kind in ("chain", "key", "both")))
        issued.chain.write_bytes(chain)
        issued.key.write_bytes(pkcs8)
        issued.both.write_bytes(pkcs8 + chain)
        return issued
