"""The value types of the configuration: each reports what it expected when it gets something else."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError, core_schema

from config.problems import value_text
from config.source import number
from config.units import LONG_MAX, parse_duration_ms, parse_size, similar_size
from config.visible import has_control
from quota.connections import canonical_address, canonical_source

Pairs = tuple[tuple[str, int], ...]
DEFAULT_WORD = "<default>"
"""How the default entity is written, as in Kafka's own tools."""

_SIZE_PATTERN = r"^\s*(0|[1-9][0-9_]*)(\.[0-9]+)?\s*([kKMGTP]?B?|[KMGTP]iB?)(/s)?\s*$"
_DURATION_PATTERN = r"^\s*(0|[1-9][0-9_]*)(\.[0-9]+)?\s*(ms|s|m|min|h|d)?\s*$"


class Section(BaseModel):
    """A mapping of the file, in which unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if (expected := self._expected_together()) is not None:
            raise wrong(expected)
        return self

    def _expected_together(self) -> str | None:
        """What is wrong with the values together, though each is valid; None: nothing."""
        return None


def keys_of(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields of a section, by their keys in the file."""
    return {info.alias or name: info for name, info in model.model_fields.items()}


def setting(default: Any, description: str, **more: Any) -> Any:
    """A key of a section: its default, and what the JSON schema says of it."""
    return Field(default=default, description=description, **more)


@dataclass(eq=False, slots=True)
class Value:
    """Metadata for `Annotated`: one function that checks and converts, and the corresponding JSON schema."""

    check: Callable[[Any], Any]
    schema: dict[str, Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return dict(self.schema)


def wrong(expected: str) -> PydanticCustomError:
    """The error for a value of the wrong kind; `expected` completes the sentence "expected …"."""
    return PydanticCustomError("kquota_expected", "{expected}", {"expected": f"expected {expected}"})


_NO_CONTROL = r"[^\x00-\x1f\x7f-\x9f]"
"""A character of a name: NUL, line ends and the like would make two names look the same in a log."""


def _integer(value: Any) -> int | None:
    """The value if it is a whole number, such as 5 or 5.0."""
    return int(value) if number(value) is not None and value == int(value) else None


def whole(least: int, most: int, what: str) -> Value:
    """An integer between two bounds, both allowed."""

    def check(value: Any) -> int:
        result = _integer(value)
        if result is None or not least <= result <= most:
            raise wrong(f"{what}, a whole number from {least} to {most}")
        return result

    return Value(check, {"type": "integer", "minimum": least, "maximum": most})


def size(least: int, most: int, what: str) -> Value:
    """A number of bytes, plain or with a unit."""

    def check(value: Any) -> int:
        result = parse_size(value) if isinstance(value, str) else _integer(value)
        if result is None or not least <= result <= most:
            upper = f" and at most {most}" if most != LONG_MAX or (result or 0) > most else ""
            meant = similar_size(value) if isinstance(value, str) else None
            proposal = f"; did you mean {meant}?" if meant is not None and result is None else ""
            raise wrong(f"{what} of at least {least}{upper}, such as 4000000, 4M or 4MiB{proposal}")
        return result

    schema: dict[str, Any] = {
        "anyOf": [{"type": "integer", "minimum": least, "maximum": most}, {"type": "string", "pattern": _SIZE_PATTERN}]
    }
    return Value(check, schema)


def duration_ms(least_ms: int, most_ms: int, *, bare_unit: str | None) -> Value:
    """A duration, kept in milliseconds. `bare_unit` is the unit of a bare number; None: a unit must be written."""

    def check(value: Any) -> int:
        known = isinstance(value, str) or number(value) is not None
        result = parse_duration_ms(str(value), bare_unit=bare_unit) if known else None
        if result is None or not least_ms <= result <= most_ms:
            alone = f"; a number without a unit is in {bare_unit}" if bare_unit else "; the unit is required"
            raise wrong(f"a duration from {least_ms / 1000:g}s to {most_ms / 1000:g}s, such as 30s or 500ms{alone}")
        return result

    schema = {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": _DURATION_PATTERN}]}
    return Value(check, schema)


def duration_s(least_ms: int, most_ms: int) -> Value:
    """A duration, kept in seconds, which a bare number is in."""
    in_ms = duration_ms(least_ms, most_ms, bare_unit="s")
    return Value(lambda value: in_ms.check(value) / 1000, in_ms.schema)


def rate(what: str) -> Value:
    """A positive number that may have a fraction; a trailing percent sign is allowed where `what` is a percentage."""

    def check(value: Any) -> float:
        if isinstance(value, str) and "percent" in what and re.fullmatch(r"\d+(\.\d+)?\s*%", value.strip()):
            value = float(value.strip()[:-1])
        if number(value) is None or value <= 0:
            raise wrong(f"{what}, a number above 0")
        return float(value)

    return Value(check, {"type": "number", "exclusiveMinimum": 0})


def text(what: str, *, most: int = 32_767) -> Value:
    """Non-empty text. YAML turns `1234` and `true` into other things, so these get a hint to quote them."""

    def check(value: Any) -> str:
        if isinstance(value, str) and 0 < len(value.encode("utf-8", "surrogatepass")) <= most:
            if has_control(value):
                raise wrong(f"{what} without control characters")
            return value
        if value is None or isinstance(value, str | dict | list):
            raise wrong(f"{what}: text of 1 to {most} bytes")
        raise wrong(
            f'{what} as text: write it in quotes, as "…" (without them YAML reads it as {type(value).__name__})'
        )

    schema = {"type": "string", "minLength": 1, "maxLength": most, "pattern": f"^{_NO_CONTROL}+$"}
    return Value(check, schema)


def _address(value: Any) -> str:
    if value == DEFAULT_WORD:
        return DEFAULT_WORD
    try:
        return canonical_source(value if isinstance(value, str) else "")
    except ValueError as error:
        why = f"; {error}" if "/" in str(value) else ""
        raise wrong(f"{_A_SOURCE}, or {DEFAULT_WORD}; host names are not looked up{why}") from None


_A_SOURCE = "an IP address or a network, such as 10.0.0.1, 2001:db8::1 or 10.0.0.0/8"
ADDRESS = Value(_address, {"type": "string", "minLength": 2})


def _absolute_path(value: Any) -> str:
    # A relative path would depend on the working directory at start; NUL cannot be in a path at all.
    if isinstance(value, str) and value.startswith("/") and not value.endswith("/") and "\0" not in value:
        return value
    raise wrong("the absolute path of a file, such as /etc/kquota/tls.crt")


AbsolutePath = Annotated[str, Value(_absolute_path, {"type": "string", "pattern": "^/.*[^/]$"})]


def port_range(text: str) -> range | None:
    """``9092-9094``, or one port; None for anything else."""
    match = re.fullmatch(r"\s*(\d{1,5})\s*(?:-\s*(\d{1,5})\s*)?", text, re.ASCII)
    first, last = (0, 0) if match is None else (int(match[1]), int(match[2] or match[1]))
    return range(first, last + 1) if 1 <= first <= last <= 65_535 else None


def _port_range(value: Any) -> range:
    found = port_range(str(value))
    if found is None:
        raise wrong('a port or a range of ports from 1 to 65535, such as 9092 or "9092-9094"')
    return found


PORT_RANGE = Value(_port_range, {"type": "string", "pattern": r"^[0-9]{1,5}(-[0-9]{1,5})?$"})
_PORTS_PATTERN = r"^\s*[0-9]{1,5}\s*(-\s*[0-9]{1,5}\s*)?$"
PORTS = Value(
    _port_range,
    {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 65_535}, {"type": "string", "pattern": _PORTS_PATTERN}]},
)
"""One port or first-last, also as a number."""


def _port_map(value: Any) -> dict[int, int]:
    expected = "ports by broker id, such as {1001: 19092}"
    if not isinstance(value, dict):
        raise wrong(expected)
    result: dict[int, int] = {}
    ports: set[int] = set()
    for name, port in value.items():
        if not re.fullmatch(r"[0-9]{1,10}", str(name), re.ASCII) or int(name) >= 2**31:
            raise wrong(f"{expected}; {value_text(name)} is not a broker id")
        node_id = int(name)
        local = _integer(port)
        if local is None or not 1 <= local <= 65_535:
            raise wrong(f"{expected}; broker {name}: {value_text(port)} is not a port")
        if node_id in result or local in ports:
            raise wrong(f"{expected}, each id and each port once; {value_text(name)}: {port} repeats an id or a port")
        result[node_id] = local
        ports.add(local)
    return result


PORT_MAP = Value(
    _port_map,
    {
        "type": "object",
        "propertyNames": {"pattern": "^[0-9]{1,10}$"},
        "additionalProperties": {"type": "integer", "minimum": 1, "maximum": 65_535},
    },
)


class HostPort(NamedTuple):
    """Where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _host_port(value: Any) -> HostPort:
    # host:port or [IPv6]:port, as in Kafka's bootstrap.servers
    match = (
        re.fullmatch(r"(?:\[([0-9A-Fa-f:.%]+)\]|([^\s:/\[\]]+)):(\d{1,9})", value) if isinstance(value, str) else None
    )
    if match is None:
        raise wrong('host:port, such as "kafka-0.kafka:9092" or "[::1]:9092"')
    if not 1 <= int(match[3]) <= 65_535:
        raise wrong("a port from 1 to 65535 after the host name")
    return HostPort(match[1] or match[2], int(match[3]))


HOST_PORT = Value(_host_port, {"type": "string", "pattern": "^.+:[0-9]{1,5}$"})


def _host(value: Any, *, wildcard: bool) -> str:
    expected = "a host name or address without scheme and port" + ("" if wildcard else ", not 0.0.0.0 or ::")
    if not isinstance(value, str) or len(value) > 253:
        raise wrong(expected)
    if ":" in value or re.fullmatch(r"[0-9.]+", value):  # in digits alone only a whole address, not 0 for 0.0.0.0
        try:
            address = ipaddress.ip_address(value)
        except ValueError:
            raise wrong(expected) from None
        if address.is_unspecified:
            value = str(address)  # known by this spelling: 0:0:0:0:0:0:0:0 is ::
        fine = wildcard or not address.is_unspecified
    else:
        fine = re.fullmatch(r"[^\s/\[\]]+", value) is not None
    if not fine:
        raise wrong(expected)
    return str(value)


_HOST_SCHEMA: dict[str, Any] = {"type": "string", "maxLength": 253, "pattern": r"^[^\s/\[\]]+$"}
HOST = Value(partial(_host, wildcard=True), _HOST_SCHEMA)
CLIENTS_HOST = Value(partial(_host, wildcard=False), _HOST_SCHEMA)
"""One that clients connect to."""


_HOST_NAMES_PATTERN = (
    r"^(\*|(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*)$"
)


def _host_names(value: Any) -> str:
    if isinstance(value, str) and len(value) <= 255 and re.fullmatch(_HOST_NAMES_PATTERN, value):
        return value.lower()
    raise wrong("a host name without scheme and port, such as kquota.example.com, or *.example.com, or * for any")


HOST_NAMES = Value(_host_names, {"type": "string", "pattern": _HOST_NAMES_PATTERN, "maxLength": 255})


def _pairs(value: Any, expected: str, each: str, read: Callable[[str, str], tuple[str, int]]) -> Pairs:
    """Kafka's "name:number,name:number"; names may hold colons. `read` raises ValueError, with more to say or not."""
    if not isinstance(value, str):
        raise wrong(expected)
    result: dict[str, int] = {}
    for part in value.split(","):
        name, _, written = (piece.strip() for piece in part.rpartition(":"))
        try:
            key, number = read(name, written)
        except ValueError as error:
            raise wrong(f"{expected}; {value_text(part.strip())} is not one{error}") from None
        if key in result:
            raise wrong(f"{expected}, each {each} once; {value_text(name)} occurs twice")
        result[key] = number
    return tuple(result.items())


def _override(name: str, limit: str) -> tuple[str, int]:
    amount = parse_size(limit) or 0
    if name and not has_control(name) and 1 <= amount <= LONG_MAX:
        return name, amount
    meant = similar_size(limit) if name and not amount else None
    raise ValueError("" if meant is None else f"; did you mean {meant}?")


def _cap(address: str, most: str) -> tuple[str, int]:
    with suppress(ValueError):
        if re.fullmatch(r"[0-9]{1,10}", most) and int(most) < 2**31:
            return canonical_address(address), int(most)
    raise ValueError


OVERRIDES = Value(
    lambda value: _pairs(value, 'client ids with sizes, such as "clientA:4M,clientB:10M"', "client id", _override),
    {"type": "string"},
)
"""KIP-13: "clientA:4M,clientB:10M"."""
CAP_OVERRIDES = Value(
    lambda value: _pairs(value, 'addresses with whole numbers, such as "10.0.0.1:100,10.0.0.2:0"', "address", _cap),
    {"type": "string"},
)
"""Kafka's max.connections.per.ip.overrides: "10.0.0.1:100,::1:200"."""
