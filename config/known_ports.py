"""The file `listen.state_file`: which local port leads to which broker, stored for a restart, as JSON.

    {"version": 1, "ports": [{"port": 19093, "broker": 1, "host": "kafka-1.kafka", "broker_port": 9092, "until": null}]}

`until`: null for the advertised port, else when it ceases to stand for the broker, in seconds since 1970.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from config.problems import first_error
from proxy.core.wire.frames import WireError
from proxy.core.wire.responses import NodeAddress
from proxy.net.files import read_file
from proxy.net.listen.addresses import KnownPort, check_address

MAX_BYTES: Final = 4 * 1024 * 1024
"""Ten thousand brokers with names of a hundred characters are half of it."""
_STRICT: Final = ConfigDict(extra="forbid", strict=True, frozen=True)
_Port = Annotated[int, Field(ge=1, le=65_535)]


class _KnownPort(BaseModel):
    """One port."""

    model_config = _STRICT
    port: _Port
    broker: Annotated[int, Field(ge=0, lt=2**31)]
    host: Annotated[str, Field(min_length=1, max_length=255)]
    broker_port: _Port
    until: Annotated[float, Field(allow_inf_nan=False)] | None


class _File(BaseModel):
    """The whole file."""

    model_config = _STRICT
    version: Literal[1]
    ports: Annotated[list[_KnownPort], Field(max_length=65_535)]


class BadStateError(Exception):
    """The file cannot be used; the message says why."""


def load_ports(path: str | Path) -> list[KnownPort]:
    """The ports in the file; none when there is no file yet. Raises BadStateError."""
    try:
        return parse_ports(read_file(path, MAX_BYTES), time.time())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise BadStateError(f"{path} cannot be read: {error.strerror or error}") from error
    except BadStateError as error:
        raise BadStateError(f"{path}: {error}") from None


def parse_ports(data: bytes, now_s: float) -> list[KnownPort]:
    """The ports in the file's content, at the time `now_s` (seconds since 1970). Raises BadStateError."""
    try:
        found = _File.model_validate_json(data)
    except ValidationError as error:
        raise BadStateError(first_error(error)) from None
    ports = [
        KnownPort(one.port, NodeAddress(one.broker, one.host, one.broker_port), one.until and one.until - now_s)
        for one in found.ports
    ]
    for index, one in enumerate(ports):
        try:
            check_address(one.broker)
        except WireError as error:
            raise BadStateError(f"ports.{index}: {error}") from None
    return [one for one in ports if one.held_s is None or one.held_s > 0]


def ports_bytes(ports: Iterable[KnownPort], now_s: float) -> bytes:
    """The content of the file."""
    rows = [
        {
            "port": port,
            "broker": broker.node_id,
            "host": broker.host,
            "broker_port": broker.port,
            "until": None if held_s is None else round(now_s + held_s, 3),
        }
        for port, broker, held_s in ports
    ]
    return json.dumps({"version": 1, "ports": rows}, separators=(",", ":")).encode() + b"\n"
