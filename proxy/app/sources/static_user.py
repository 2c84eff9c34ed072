"""The static user defined by files: one that names it, or a volume of Kubernetes' downward API.

None of it comes from the application: its environment is not used, and the kubelet mounts the files read-only in the
sidecar's container. What the author of a pod may choose (labels) is only as trustworthy as that author; namespace and
service account are set by the API server.
"""

from __future__ import annotations

import base64
import json
import os
import re
from pathlib import Path
from typing import Final

from config.identity import StaticIdentity, template_fields
from proxy.net.files import read_file

MAX_BYTES: Final = 65_536
"""Files of identity are small; a larger one is something else."""
_LABEL: Final = re.compile(r'([^=\s]+)="([A-Za-z0-9._-]*)"')
"""One line of the downward API's labels; values of labels have no other characters."""
_VALUE: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
"""Names of namespaces, service accounts, pods, and values of labels. Nothing in them can pass for a separator."""
_SUBJECT: Final = re.compile(r"system:serviceaccount:([^:]+):([^:]+)")


class StaticUserError(OSError):
    """The files do not define a user; the message has the place and the reason."""


class StaticUser:
    """Reads the user from its files."""

    setting = "identity.static"

    def __init__(self, settings: StaticIdentity) -> None:
        self._settings = settings

    @property
    def paths(self) -> list[Path]:
        """The files it reads."""
        settings = self._settings
        if settings.file is not None:
            return [Path(settings.file)]
        if settings.template is None or settings.directory is None:
            return []
        names = {"labels" if name.startswith("label:") else name for name in template_fields(settings.template)}
        return [Path(settings.directory, name) for name in sorted(names | {"token"})]

    def read(self) -> str | None:
        """The user. Raises StaticUserError."""
        settings = self._settings
        if settings.file is not None:
            return _line(Path(settings.file))
        if settings.template is None or settings.directory is None:
            return settings.user
        directory = Path(settings.directory)
        user = settings.template
        for name in template_fields(settings.template):
            user = user.replace(f"{{{name}}}", _field(directory, name))  # values have no braces
        return user


def _text(path: Path) -> str:
    try:
        return read_file(path, MAX_BYTES).decode()
    except UnicodeDecodeError:
        raise _wrong(path, "expected text in UTF-8") from None
    except OSError as error:
        raise _wrong(path, f"cannot be read: {error.strerror or error}") from None


def _wrong(path: Path, reason: str) -> StaticUserError:
    return StaticUserError(f"{StaticUser.setting} {path}: {reason}")


def _line(path: Path) -> str:
    line = _text(path).strip()
    if not line or not line.isprintable():
        raise _wrong(path, "expected one line of text, the user" if line else "is empty, expected the user")
    return line


def _field(directory: Path, name: str) -> str:
    path, value = directory / name, ""
    if name.startswith("label:"):
        path = directory / "labels"
        labels = dict(_LABEL.findall(_text(path)))
        key = name.removeprefix("label:")
        if key not in labels:
            raise _wrong(path, f"there is no label {key}")
        value = labels[key]
    elif name in ("service_account", "namespace") and not os.path.lexists(path):
        value = _from_token(directory / "token")[name == "service_account"]
    else:
        value = _text(path).strip()
    if not _VALUE.fullmatch(value):
        raise _wrong(path, f"expected a name as Kubernetes has them for {name}, got {value[:80]!r}")
    return value


def _from_token(path: Path) -> tuple[str, str]:
    """(namespace, service account) of a service account's token (RFC 7519), as the kubelet puts it into a projected
    volume. The signature is not verified: a writer of this file could as well write the configuration."""
    parts = _text(path).strip().split(".")
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        match = _SUBJECT.fullmatch(claims["sub"])
    except (ValueError, IndexError, KeyError, TypeError, RecursionError):
        match = None
    if match is None:
        raise _wrong(path, "expected the token of a service account")
    return match[1], match[2]
