"""SASL logins of the attackers: the messages of each mechanism."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import time
from collections.abc import Generator

from benchmarks.evasion import gssapi
from tests.support.sasl_tools import bearer, jwt

SERVICE = "kafka@localhost"
"""Of the broker, as Kerberos knows it; clients ask for its host by that name whatever the address is."""
Steps = Generator[bytes, bytes, None]
"""Yields what the client says, is sent what the broker answers."""


def steps(mechanism: str, user: str, password: str, *, token_s: float = 1800.0, by_token: bool = False) -> Steps:
    """The client's messages of one login."""
    if mechanism == "PLAIN":
        return _plain(user, password)
    if mechanism == "OAUTHBEARER":
        return _bearer(user, token_s)
    if mechanism == "GSSAPI":
        return gssapi.login(SERVICE)
    return _scram(mechanism.removeprefix("SCRAM-").replace("-", "").lower(), user, password, by_token=by_token)


def _plain(user: str, password: str) -> Steps:
    yield f"\0{user}\0{password}".encode()


def _bearer(user: str, token_s: float) -> Steps:
    now_s = int(time.time()) - 1  # a broker allows no token that was issued after its own clock's last millisecond
    answer = yield bearer(jwt({"sub": user, "iat": now_s, "exp": now_s + token_s}))
    if answer:  # RFC 7628: what is wrong with the token; the failure itself would follow
        raise ValueError(f"the broker does not take the token: {answer!r}")


_salted: dict[tuple[str, str, bytes, int], bytes] = {}
"""Salting takes milliseconds, and an attacker who logs in again and again does it once."""


def _scram(algorithm: str, user: str, password: str, *, by_token: bool) -> Steps:
    bare = f"n={user},r={os.urandom(12).hex()}".encode() + (b",tokenauth=true" if by_token else b"")
    first = yield b"n,," + bare
    parts = dict(part.split(b"=", 1) for part in first.split(b","))
    salt, rounds = base64.b64decode(parts[b"s"]), int(parts[b"i"])
    key = (algorithm, password, salt, rounds)
    if key not in _salted:
        _salted[key] = hashlib.pbkdf2_hmac(algorithm, password.encode(), salt, rounds)
    client_key = hmac.digest(_salted[key], b"Client Key", algorithm)
    without_proof = b"c=biws,r=" + parts[b"r"]
    signature = hmac.digest(
        hashlib.new(algorithm, client_key).digest(), b",".join((bare, first, without_proof)), algorithm
    )
    proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
    yield without_proof + b",p=" + base64.b64encode(proof)
