"""The webhook's own certificate: created, kept in a Secret of its namespace, renewed, and given to the API server. The
authority signs for this Service alone; its key stays in the Secret, so that each replica can renew."""

from __future__ import annotations

import base64
import datetime
from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from deploy.kubernetes.cluster import CONFIGURATIONS, MANAGER, VALIDATING, ApiServerError, Cluster, owner_reference
from deploy.kubernetes.distribution import Distribution, Json

AUTHORITY_DAYS: Final = 3650
CERTIFICATE_DAYS: Final = 365
RENEW_AT: Final = 2 / 3
"""Fraction of its lifetime, as in cert-manager's default."""
_SKEW: Final = datetime.timedelta(hours=1)
"""Valid this much earlier: nodes whose clocks are behind have to accept it too."""
FORMER: Final = 3
"""Authorities that stay trusted after a new one: replicas that have not its certificate yet are asked too."""
ATTEMPTS: Final = 5
_PARTS: Final = ("ca.crt", "ca.key", "tls.crt", "tls.key")


@dataclass(frozen=True, slots=True)
class Pair:
    """A server's certificate and key, PEM; and what its clients trust."""

    certificate: bytes
    key: bytes
    authority: bytes | None
    """None: others give the API server its authority."""


def renewed(old: dict[str, bytes], host: str, now: datetime.datetime) -> dict[str, bytes] | None:
    """The new content of the Secret (`ca.crt`, `ca.key`, `tls.crt`, `tls.key`; PEM) in place of `old`, which may be
    garbage; None: it is good."""
    try:
        authority = x509.load_pem_x509_certificate(old["ca.crt"])
        key = serialization.load_pem_private_key(old["ca.key"], None)
    except (KeyError, ValueError, TypeError):
        return _with_certificate(_authority(host, now), host, now)
    if _is_due(authority, now) or not isinstance(key, ec.EllipticCurvePrivateKey):
        return _with_certificate(_authority(host, now), host, now)
    try:
        certificate = x509.load_pem_x509_certificate(old["tls.crt"])
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        good = host in names.get_values_for_type(x509.DNSName) and not _is_due(certificate, now)
        certificate.verify_directly_issued_by(authority)
        private = serialization.load_pem_private_key(old["tls.key"], None)
        good = good and private.public_key() == certificate.public_key()
    except Exception:  # of many kinds; whatever is wrong with it, it is replaced
        good = False
    return None if good else _with_certificate(old, host, now)


def _is_due(certificate: x509.Certificate, now: datetime.datetime) -> bool:
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return now >= begin + (end - begin) * RENEW_AT


def _authority(host: str, now: datetime.datetime) -> dict[str, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"kquota webhook {host}"[:64])])
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    builder = _builder(now, name, name, key, signs=True).add_extension(identifier, critical=False)
    return {"ca.crt": _pem(builder.sign(key, hashes.SHA256())), "ca.key": _pem(key)}


def _with_certificate(held: dict[str, bytes], host: str, now: datetime.datetime) -> dict[str, bytes]:
    authority = x509.load_pem_x509_certificate(held["ca.crt"])
    signer = serialization.load_pem_private_key(held["ca.key"], None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        _builder(now, x509.Name([]), authority.subject, key, signs=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA256())
    )
    return {name: held[name] for name in ("ca.crt", "ca.key")} | {"tls.crt": _pem(certificate), "tls.key": _pem(key)}


def _builder(
    now: datetime.datetime, subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, *, signs: bool
) -> x509.CertificateBuilder:
    """What both certificates have; one that `signs` is an authority's."""
    others = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    unused = dict.fromkeys((*others, "encipher_only", "decipher_only"), False)
    usage = x509.KeyUsage(digital_signature=not signs, key_cert_sign=signs, crl_sign=signs, **unused)
    return (
        x509.CertificateBuilder()
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + datetime.timedelta(days=AUTHORITY_DAYS if signs else CERTIFICATE_DAYS))
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=signs, path_length=0 if signs else None), critical=True)
        .add_extension(usage, critical=True)
    )


def _pem(thing: x509.Certificate | ec.EllipticCurvePrivateKey) -> bytes:
    if isinstance(thing, x509.Certificate):
        return thing.public_bytes(serialization.Encoding.PEM)
    return thing.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


async def keep(cluster: Cluster, settings: Distribution) -> Pair:
    """The pair that all replicas have, from the Secret, which belongs to the MutatingWebhookConfiguration; created or
    renewed there when due. Raises ApiServerError."""
    place = f"/api/v1/namespaces/{settings.namespace}/secrets"
    while True:
        secret = await cluster.get(f"{place}/{settings.secret}")
        data = (secret or {}).get("data") or {}
        held = {part: base64.b64decode(data[part]) for part in _PARTS if part in data}
        fresh = renewed(held, settings.host, datetime.datetime.now(datetime.UTC))
        if fresh is None:
            return Pair(held["tls.crt"], held["tls.key"], held["ca.crt"])
        encoded = {part: base64.b64encode(value).decode() for part, value in fresh.items()}
        try:
            if secret is None:
                owner = owner_reference(await cluster.ask("GET", f"{CONFIGURATIONS}/{settings.configuration}"))
                metadata = {"name": settings.secret, "labels": settings.labels, "ownerReferences": [owner]}
                body = {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "data": encoded}
                await cluster.ask("POST", place, body | {"metadata": metadata})
            else:
                await cluster.ask("PUT", f"{place}/{settings.secret}", secret | {"data": data | encoded})
        except ApiServerError as error:
            if error.status != 409:  # another replica was faster: read what it has created
                raise


async def set_authority(cluster: Cluster, configuration: str, authority: bytes) -> bool:
    """Make the API server trust `authority` too; returns whether it did not yet. Raises ApiServerError."""
    changed = False
    for kind in (CONFIGURATIONS, VALIDATING):
        for attempt in range(ATTEMPTS):
            try:
                changed |= await _set_authority(cluster, f"{kind}/{configuration}", authority)
            except ApiServerError as error:
                if error.status not in (409, 422) or attempt == ATTEMPTS - 1:  # another replica was faster
                    raise
            else:
                break
    return changed


async def _set_authority(cluster: Cluster, path: str, authority: bytes) -> bool:
    found = await cluster.get(path)
    if found is None:
        return False
    steps: list[Json] = [
        {"op": "test", "path": "/metadata/resourceVersion", "value": found["metadata"]["resourceVersion"]}
    ]
    now = datetime.datetime.now(datetime.UTC)
    for index, hook in enumerate(found.get("webhooks") or []):
        bundle = bundled(authority, base64.b64decode(hook["clientConfig"].get("caBundle") or ""), now)
        if bundle is not None:
            value = base64.b64encode(bundle).decode()
            steps.append({"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": value})
    if len(steps) == 1:
        return False
    await cluster.ask("PATCH", path, steps, "json-patch+json", fieldManager=MANAGER)
    return True


def bundled(authority: bytes, there: bytes, now: datetime.datetime) -> bytes | None:
    """The certificates of `authority`, and the latest of `there`, which are trusted already and may be garbage; None:
    nothing has to change. Raises ValueError if `authority` is garbage."""
    wanted = x509.load_pem_x509_certificates(authority)
    try:
        trusted = x509.load_pem_x509_certificates(there)
    except ValueError:
        trusted = []
    if all(one in trusted[:FORMER] for one in wanted):
        return None
    former = [one for one in trusted if one not in wanted and one.not_valid_after_utc > now]
    return b"".join(map(_pem, wanted + former[:FORMER]))
