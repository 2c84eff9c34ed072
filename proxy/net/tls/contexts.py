"""TLS contexts from files, towards clients and towards brokers. When the files change, new connections get a new
context, existing ones keep theirs; files that do not make a valid one change nothing."""

from __future__ import annotations

import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import starmap
from pathlib import Path
from typing import Any, Final, NoReturn

from proxy.core.errors import tls_alert
from proxy.net.files import read_file
from proxy.net.tls import channel
from proxy.net.tls.certificates import CertificateError, EncryptedKeyError, in_pem, subject, valid_s
from proxy.net.tls.cpu_limit import CpuLimitError, cpu_limit
from proxy.net.tls.principal import NoRuleError, PrincipalRules
from proxy.net.tls.python_ssl import Context

CLIENT_AUTH: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
MAX_PEM_BYTES: Final = 4 * 1024 * 1024
"""For a file with certificates or a key; all authorities that a system trusts are some 250 kB."""
MAX_MAPPING_S: Final = 0.002
"""CPU time for the mapping rules and one subject. Rules like those of Kafka's documentation take some 10 µs."""
MAX_KNOWN_SUBJECTS: Final = 1024


class TlsFilesError(OSError):
    """No context can be made of the files; the message has the setting, the file and the reason."""


class NotYetValidError(TlsFilesError):
    """A certificate in them is not valid yet: later they can be used as they are."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate (with the chain that leads to its authority) and its private key, in PEM files."""

    certificate: Path
    key: Path


class TlsSide:
    """What both directions share: files in, a context and its expiry out."""

    def __init__(
        self, setting: str, pair: KeyPair | None, authorities: tuple[str, Path] | None, server: bool, *verify: Any
    ) -> None:
        """`authorities` of the peer's certificate: the setting's name and the file. Raises TlsFilesError."""
        self.setting: Final = setting
        self._pair = pair
        self._authorities = authorities
        self._server, self._verify = server, verify
        self.paths = [*([pair.certificate, pair.key] if pair else []), *([authorities[1]] if authorities else [])]
        self.expires_at_s: float | None = None
        """When the first certificate of our own chain expires (Unix time); None without one."""
        self.not_valid: str | None = None
        """Why the certificates that were read last are not valid now; None: they are."""
        self.context: Context
        self.load(first=True)

    def load(self, *, first: bool = False) -> None:
        """Load the files as they are now. Raises TlsFilesError, and keeps the previous context."""
        self.context = self._made(channel.CONTEXT, first)

    def _made(self, kind: type[Context], first: bool) -> Context:
        context = kind(self._server, *self._verify)
        if self._authorities is not None:
            self._trust(context, *self._authorities)
        elif not self._server:
            context.trust(None)
        self.expires_at_s = None if self._pair is None else self._own(context, self._pair, first=first)
        return context

    def _refuse(self, name: str, path: Path, reason: str, kind: type[TlsFilesError] = TlsFilesError) -> NoReturn:
        raise kind(f"{self.setting}.{name} {path}: {reason}") from None

    def _content(self, name: str, path: Path) -> bytes:
        try:
            return read_file(path, MAX_PEM_BYTES)
        except OSError as error:
            self._refuse(name, path, f"cannot be read: {error.strerror or error}")

    def _read(self, name: str, path: Path) -> list[bytes]:
        try:
            found = in_pem(self._content(name, path).decode("utf-8", "replace"))
        except CertificateError as error:
            self._refuse(name, path, str(error))
        return found or self._refuse(name, path, "expected certificates in PEM form (-----BEGIN CERTIFICATE-----)")

    def _trust(self, context: Context, name: str, path: Path) -> None:
        try:
            context.trust(self._read(name, path))
        except (ssl.SSLError, ValueError) as error:
            self._refuse(name, path, f"expected CA certificates: {error}")

    def _own(self, context: Context, pair: KeyPair, *, first: bool) -> float:
        """Load the pair into `context`. Returns when its chain expires."""
        chain = self._read("certificate_file", pair.certificate)
        try:
            valid = list(map(valid_s, chain))
        except CertificateError as error:
            self._refuse("certificate_file", pair.certificate, str(error))
        self.not_valid = next(filter(None, starmap(_why_not_valid, enumerate(valid, 1))), None)
        if self.not_valid is not None and not first:
            # At the start there is no better one: then it is only reported (log, metric, alert).
            expired = min(end for _, end in valid) <= time.time()
            kind = TlsFilesError if expired else NotYetValidError
            self._refuse("certificate_file", pair.certificate, self.not_valid, kind)
        key = self._content("key_file", pair.key)
        if b"PRIVATE KEY-----" not in key:
            self._refuse("key_file", pair.key, "expected a private key in PEM form (-----BEGIN PRIVATE KEY-----)")
        try:
            context.own(chain, key)
        except EncryptedKeyError:
            self._refuse("key_file", pair.key, "is encrypted; expected a private key without a password")
        except ssl.SSLError as error:
            if str(error.reason).endswith(("_TOO_SMALL", "_TOO_WEAK")):
                text = f"is too weak ({error.reason}); expected at least RSA 2048 or EC 224, signed with SHA-2"
                self._refuse("certificate_file", pair.certificate, text)
            if str(error.reason).endswith(("_MISMATCH", "NO_CERTIFICATE_ASSIGNED")):
                text = f"is not the key of the certificate in {pair.certificate} (the first, if it has several)"
                self._refuse("key_file", pair.key, text)
            self._refuse("key_file", pair.key, f"does not match {pair.certificate}: {error.reason or error}")
        except OSError as error:
            self._refuse("key_file", pair.key, f"cannot be read: {error.strerror or error}")
        return min(end for _, end in valid)


class ServerTls(TlsSide):
    """Towards clients (`listen.tls`)."""

    def __init__(
        self,
        pair: KeyPair,
        *,
        client_auth: str = "none",
        client_authorities: Path | None = None,
        rules: PrincipalRules | None = None,
        handshake_timeout_s: float = 10.0,
    ) -> None:
        """`client_auth`: none, or requested and required, which need `client_authorities`. Raises TlsFilesError."""
        self._rules = rules or PrincipalRules()
        self._user = lru_cache(MAX_KNOWN_SUBJECTS)(self._mapped)  # what is slow is done once for each subject
        self.handshake_timeout_s = handshake_timeout_s
        authorities = None if client_authorities is None else ("client_ca_file", client_authorities)
        super().__init__("listen.tls", pair, authorities, True, CLIENT_AUTH[client_auth])

    def user(self, der: bytes | None) -> str | None:
        """The user in the client's certificate (DER), if it sent one. Raises NoRuleError and CertificateError."""
        if der is None:
            return None
        if isinstance(user := self._user(subject(der)), NoRuleError):
            raise NoRuleError(str(user))
        return user

    def _mapped(self, name: str) -> str | NoRuleError:
        """The user of a subject, or why it has none. A subject can make a rule backtrack for minutes."""
        try:
            with cpu_limit(MAX_MAPPING_S):
                return self._rules.user(name)
        except NoRuleError as error:
            return NoRuleError(str(error))
        except CpuLimitError:
            limit = f"more than {MAX_MAPPING_S * 1000:g} ms"
            return NoRuleError(f"ssl.principal.mapping.rules need {limit} for the subject {name!r}")


class ClientTls(TlsSide):
    """Towards brokers (`upstream.tls`)."""

    def __init__(
        self,
        *,
        authorities: Path | None = None,
        pair: KeyPair | None = None,
        server_name: str | None = None,
        verify_hostname: bool = True,
    ) -> None:
        """`authorities` None: the system's. `server_name` None: the host connected to. Raises TlsFilesError."""
        self._server_name = server_name
        trusted = None if authorities is None else ("ca_file", authorities)
        super().__init__("upstream.tls", pair, trusted, False, ssl.CERT_REQUIRED, verify_hostname)

    def load(self, *, first: bool = False) -> None:
        """As in any side, and a context for libraries that make their own connections."""
        library = self._made(Context, first).context
        library.server_name = self._server_name
        super().load(first=first)
        self.library_context: ssl.SSLContext = library

    def name_for(self, host: str) -> str:
        """The name that is asked of the broker at `host` (SNI) and that it has to prove."""
        return self._server_name or host


def _why_not_valid(number: int, valid: tuple[float, float]) -> str | None:
    """What is wrong with the validity of the certificate with this number in a file; None: it is valid now."""
    begin_s, end_s = valid
    if begin_s <= time.time() < end_s:
        return None
    which = "" if number == 1 else f"its certificate {number} "
    what, at_s = ("expired at", end_s) if end_s <= time.time() else ("is not valid before", begin_s)
    return f"{which}{what} {time.strftime('%Y-%m-%d %H:%M:%S UTC', time.gmtime(at_s))}"


def explain(error: BaseException, *, of_broker: bool) -> tuple[str, str]:
    """Why a handshake failed: (one word for metrics, a sentence for people)."""
    peer, ours = ("broker", "upstream.tls") if of_broker else ("client", "listen.tls")
    if isinstance(error, ssl.SSLCertVerificationError):
        hint = ""
        if error.verify_code in _UNKNOWN_AUTHORITY:
            hint = f"; is its authority in {'upstream.tls.ca_file' if of_broker else 'listen.tls.client_ca_file'}?"
        elif error.verify_code in _OTHER_NAME:
            hint = "; upstream.tls.server_name can name the right one"
        return "certificate", f"the {peer}'s certificate is refused: {error.verify_message}{hint}"
    reason = getattr(error, "reason", None) or ""
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError | ConnectionError) or reason == "UNEXPECTED_EOF":
        return "closed", f"the {peer} closed the connection during the TLS handshake"
    if isinstance(error, ssl.SSLError) and reason:
        if (which := tls_alert(error)) is not None:
            return "refused", f"the {peer} refused the TLS handshake: {which} (see {ours})"
        if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
            return "certificate", f"the {peer} sent no certificate, but one is required"
        if reason in ("UNSUPPORTED_PROTOCOL", "VERSION_TOO_LOW", "NO_PROTOCOLS_AVAILABLE"):
            return "version", f"the {peer} does not offer TLS 1.2 or later"
        if reason in _NOT_TLS:
            return "not_tls", f"the {peer} does not speak TLS here ({reason.replace('_', ' ').lower()})"
        return "other", f"TLS handshake with the {peer}: {reason.replace('_', ' ').lower()}"
    return "other", f"TLS handshake with the {peer}: {error}"


_UNKNOWN_AUTHORITY: Final[Sequence[int]] = (2, 18, 19, 20, 21)
"""OpenSSL's X509_V_ERR_*: no issuer found, self-signed (alone, in the chain), no local issuer, cannot be verified."""
_OTHER_NAME: Final[Sequence[int]] = (62, 64)
"""X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH."""
_NOT_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "RECORD_LAYER_FAILURE"})
