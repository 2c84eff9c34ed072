"""Certificates for tests: an authority of their own, brokers on 127.0.0.1, clients with names.

PEM files, as Kafka reads them (private keys in PKCS #8).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import trustme
from cryptography.hazmat.primitives import serialization


class Issued(NamedTuple):
    """A certificate in files."""

    chain: Path
    """The certificate (chain) alone."""
    key: Path
    """The private key alone."""
    both: Path
    """Key and chain in one file, as Kafka's keystores of type PEM want it."""


class Authority:
    """An authority that issues certificates into a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ca = trustme.CA()
        self.certificate = directory / "authority.pem"
        """What whoever trusts this authority has to know."""
        self._ca.cert_pem.write_to_path(self.certificate)

    def issue(
        self,
        name: str,
        *hosts: str,
        common_name: str | None = None,
        organization: str = "kquota",
        expired: bool = False,
    ) -> Issued:
        """A certificate for these host names and addresses (`name` is the files' name), good for servers and clients.

        Its subject is `CN=<common_name>,OU=...,O=<organization>`. An expired one was good until yesterday.
        """
        leaf = self._ca.issue_cert(
            *(hosts or ("client.invalid",)),
            common_name=common_name,
            organization_name=organization,
            organization_unit_name="tests",
            not_after=datetime.now(UTC) - timedelta(days=1) if expired else None,
        )
        key = serialization.load_pem_private_key(leaf.private_key_pem.bytes(), None)
        pkcs8 = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        chain = b"".join(part.bytes() for part in leaf.cert_chain_pems)
        issued = Issued(*(self._directory / f"{name}.{kind}.pem" for kind in ("chain", "key", "both")))
        issued.chain.write_bytes(chain)
        issued.key.write_bytes(pkcs8)
        issued.both.write_bytes(pkcs8 + chain)
        return issued
