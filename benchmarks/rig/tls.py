"""TLS for what is compared: certificates of a run, which sides speak it, and how each proxy and client is configured.

All programs speak TLS 1.3 with one cipher suite, so that the same bytes cost the same cryptography. Proxies check the
broker's certificate and its name, as they should in production. Keys are of the curve P-256.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.certificates import Authority

CIPHER_SUITE: Final = "TLS_AES_256_GCM_SHA384"
"""OpenSSL's preference. The broker, HAProxy and Kafka's tools are set to it; the others keep their own, and
`benchmarks.rig.rawclient.handshake` checks what they chose."""
HOST: Final = "localhost"
"""The broker's name."""
ADDRESS: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Files:
    """PEM files of one certificate, good for every server on the loopback interface, and of its authority."""

    authority: Path
    chain: Path
    key: Path
    both: Path

    @classmethod
    def issue(cls, folder: Path) -> Files:
        """New ones, in this folder."""
        authority = Authority(folder)
        return cls(authority.certificate, *authority.issue("both", HOST, ADDRESS))

    def broker_settings(self) -> dict[str, str]:
        """Of a Kafka broker's listeners with TLS."""
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.both),
            "ssl.enabled.protocols": "TLSv1.3",
            "ssl.cipher.suites": CIPHER_SUITE,
        }


@dataclass(frozen=True, slots=True)
class Sides:
    """Where TLS is spoken."""

    key: str
    """Begins the keys of scenarios."""
    title: str
    from_client: bool
    to_broker: bool


TO_BROKER = Sides("tls-broker", "TLS to the broker", from_client=False, to_broker=True)
FROM_CLIENT = Sides("tls-client", "TLS from the client", from_client=True, to_broker=False)
BOTH = Sides("tls-both", "TLS on both sides", from_client=True, to_broker=True)
ALL = (TO_BROKER, FROM_CLIENT, BOTH)


@dataclass(frozen=True, slots=True)
class Tls:
    """What a proxy and its clients are to use."""

    files: Files
    sides: Sides

    # ---- clients ----------------------------------------------------------------------------------------------------

    def client_settings(self) -> tuple[str, ...]:
        """Of Kafka's own clients."""
        if not self.sides.from_client:
            return ()
        return (
            "security.protocol=SSL",
            "ssl.truststore.type=PEM",
            f"ssl.truststore.location={self.files.authority}",
            "ssl.enabled.protocols=TLSv1.3",
            f"ssl.cipher.suites={CIPHER_SUITE}",
        )

    def client_context(self) -> ssl.SSLContext | None:
        """Of the wire client; None where it speaks plain."""
        if not self.sides.from_client:
            return None
        context = ssl.create_default_context(cafile=str(self.files.authority))
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        return context

    # ---- proxies ----------------------------------------------------------------------------------------------------

    def haproxy(self) -> tuple[str, str, str]:
        """Lines for `global`, and what is added to `bind` and to `server`."""
        wide = "".join(
            f"    ssl-default-{place}-options ssl-min-ver TLSv1.3\n"
            f"    ssl-default-{place}-ciphersuites {CIPHER_SUITE}\n"
            for place in ("bind", "server")
        )
        bind = f" ssl crt {self.files.both}" if self.sides.from_client else ""
        server = (
            f" ssl verify required ca-file {self.files.authority} verifyhost {HOST}" if self.sides.to_broker else ""
        )
        return wide, bind, server

    def envoy(self) -> tuple[dict[str, object], dict[str, object]]:
        """What is added to the listener's filter chain, and to the cluster."""
        parameters = {"tls_minimum_protocol_version": "TLSv1_3", "tls_maximum_protocol_version": "TLSv1_3"}
        pair = {
            "certificate_chain": {"filename": str(self.files.chain)},
            "private_key": {"filename": str(self.files.key)},
        }
        names = [{"san_type": "DNS", "matcher": {"exact": HOST}}]
        authority = {"trusted_ca": {"filename": str(self.files.authority)}, "match_typed_subject_alt_names": names}
        down = _transport("Downstream", {"tls_params": parameters, "tls_certificates": [pair]})
        up = _transport("Upstream", {"tls_params": parameters, "validation_context": authority}, sni=HOST)
        return down if self.sides.from_client else {}, up if self.sides.to_broker else {}

    def kquota(self) -> tuple[dict[str, object], dict[str, object]]:
        """What is added to `listen` and to `upstream`."""
        files = self.files
        listen = {"tls": {"certificate_file": str(files.chain), "key_file": str(files.key)}}
        upstream = {"tls": {"ca_file": str(files.authority)}}
        return dict(listen) if self.sides.from_client else {}, dict(upstream) if self.sides.to_broker else {}


def _transport(direction: str, common: dict[str, object], **more: object) -> dict[str, object]:
    kind = f"type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.{direction}TlsContext"
    settings = {"@type": kind, "common_tls_context": common, **more}
    return {"transport_socket": {"name": "envoy.transport_sockets.tls", "typed_config": settings}}
