"""The sidecar's own SASL login, for its own requests to the cluster: PLAIN, SCRAM-SHA-256/512, OAUTHBEARER. The secret
is in a file that is read at every login; nothing of it is kept in between."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from proxy.core.wire.messages import framed, request_header
from proxy.core.wire.primitives import INT32, string, uvarint
from proxy.core.wire.sasl import SASL_AUTHENTICATE, SASL_HANDSHAKE, SaslResponse, answer, error_code
from proxy.core.wire.throttle import body_at
from proxy.net.files import read_file

MAX_SECRET_BYTES: Final = 65_536
MAX_ITERATIONS: Final = 65_536
"""Of SCRAM; more would block everything else. Kafka's own limit is 16384 (`ScramMechanism`)."""
_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_BODY_AT: Final = 8
"""After the size and a response header of version 0."""
HANDSHAKE_VERSIONS: Final = range(1, 2)
"""After version 0 messages have no headers."""
AUTHENTICATE_VERSIONS: Final = range(3)
_FLEXIBLE_VERSION: Final = 2
"""SaslAuthenticate from this version on has compact fields (KIP-482)."""


class LoginError(Exception):
    """The sidecar could not log in; the message says why and shows no secret."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user of the cluster and where its secret is."""

    mechanism: str
    username: str | None
    """None with OAUTHBEARER, whose token names its user."""
    secret_file: Path
    """The password, or OAUTHBEARER's token. A trailing line break is not part of it."""

    def secret(self) -> str:
        """The file's content now. Raises LoginError."""
        try:
            text = read_file(self.secret_file, MAX_SECRET_BYTES).decode()
        except OSError as error:
            raise LoginError(f"{self.secret_file}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise LoginError(f"{self.secret_file} is not UTF-8 text") from None
        text = text.removesuffix("\n").removesuffix("\r")
        if not text:
            raise LoginError(f"{self.secret_file} is empty")
        return text


def login(credentials: Credentials, client_id: str, secret: str, version: int = 1) -> Generator[bytes, bytes, None]:
    """A login's exchange: yields whole request frames, is sent the whole response frames, and then ends. `secret` is
    the file's content (:meth:`Credentials.secret`), `version` that of SaslAuthenticate. Raises LoginError when the
    broker refuses, or does not prove that it knows the password (SCRAM), and WireError."""
    name = credentials.mechanism
    head = request_header(SASL_HANDSHAKE, HANDSHAKE_VERSIONS[0], 1, client_id)
    reply = yield framed(head + string(name))
    if error := error_code(reply[_BODY_AT:]):
        raise LoginError(f"the broker does not accept the SASL mechanism {name} (error code {error})")
    if name in _HASHES:
        yield from _scram(credentials, client_id, secret, version)
    elif name == "PLAIN":
        user = credentials.username or ""
        yield from _message(client_id, version, f"\0{user}\0{secret}".encode())
    else:
        last = yield from _message(client_id, version, b"n,,\1auth=Bearer %b\1\1" % secret.encode())
        if last.token:  # a challenge; only an answer makes the broker say why it rejects the token
            yield from _message(client_id, version, b"\1")
            raise LoginError("the broker does not accept the token")


def _message(client_id: str, version: int, token: bytes) -> Generator[bytes, bytes, SaslResponse]:
    head = request_header(SASL_AUTHENTICATE, version, 2, client_id)
    flexible = version >= _FLEXIBLE_VERSION
    sized = uvarint(len(token) + 1) + token + b"\0" if flexible else INT32.pack(len(token)) + token
    reply = yield framed(head + sized)
    found = answer(version, reply[body_at(reply, 0, len(reply), SASL_AUTHENTICATE, version) :])
    if found.error:
        raise LoginError(f"the broker refuses the login (error {found.error})")
    return found


def _scram(credentials: Credentials, client_id: str, secret: str, version: int) -> Generator[bytes, bytes, None]:
    """RFC 5802 without channel binding."""
    name = (credentials.username or "").replace("=", "=3D").replace(",", "=2C")
    nonce = secrets.token_urlsafe(24)
    first = f"n={name},r={nonce}"
    server_first = (yield from _message(client_id, version, f"n,,{first}".encode())).token
    final, signature = scram_final(_HASHES[credentials.mechanism], secret, first, nonce, server_first)
    server_final = (yield from _message(client_id, version, final)).token
    if not hmac.compare_digest(server_final, b"v=" + base64.b64encode(signature)):
        raise LoginError("the broker's SCRAM signature does not match the password")


def scram_final(hash_name: str, password: str, first: str, nonce: str, server_first: bytes) -> tuple[bytes, bytes]:
    """(the client's final message, the signature that the server has to show). Raises LoginError."""
    try:
        fields = dict(part.split("=", 1) for part in server_first.decode("ascii").split(","))
        salt, iterations = base64.b64decode(fields["s"], validate=True), int(fields["i"])
        whole_nonce = fields["r"]
    except (ValueError, KeyError):
        raise LoginError("the broker's first SCRAM message cannot be read") from None
    if not whole_nonce.startswith(nonce) or len(whole_nonce) == len(nonce):
        raise LoginError("the broker's SCRAM nonce does not extend the one that the sidecar sent")
    if not 1 <= iterations <= MAX_ITERATIONS:
        raise LoginError(f"the broker asks for {iterations} SCRAM iterations; 1 to {MAX_ITERATIONS} are accepted")
    salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", hash_name)
    stored_key = hashlib.new(hash_name, client_key).digest()
    without_proof = f"c=biws,r={whole_nonce}"
    signed = f"{first},{server_first.decode('ascii')},{without_proof}".encode()
    proof = bytes(a ^ b for a, b in zip(client_key, hmac.digest(stored_key, signed, hash_name), strict=True))
    server_key = hmac.digest(salted, b"Server Key", hash_name)
    return f"{without_proof},p={base64.b64encode(proof).decode()}".encode(), hmac.digest(server_key, signed, hash_name)
