"""Settings of `mode: transparent` alone."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Any

from pydantic import Field

from config.types import BOOLEAN, PortRange, Section, Value, port_range, whole, wrong


def _network(value: Any) -> str:
    expected = 'a network or an address, such as "10.0.0.0/8", "10.1.2.3" or "2001:db8::/32"'
    if not isinstance(value, str):
        raise wrong(expected)
    try:
        return str(ipaddress.ip_network(value))
    except ValueError as error:
        # 10.0.0.1/8: one address of a network, or all of it? Both would be a guess.
        bits = " without bits of hosts in it" if "host bits" in str(error) else ""
        raise wrong(expected + bits) from None


NETWORK = Value(_network, {"type": "string", "minLength": 2})
"""A CIDR in its canonical form; a single address is /32 or /128."""


def _ports(value: Any) -> PortRange:
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    found = port_range(text)
    if found is None:
        raise wrong('a port or a range of ports from 1 to 65535, such as 9092 or "9092-9094"')
    return found


PORTS = Value(
    _ports,
    {
        "anyOf": [
            {"type": "integer", "minimum": 1, "maximum": 65_535},
            {"type": "string", "pattern": r"^\s*[0-9]{1,5}\s*(-\s*[0-9]{1,5}\s*)?$"},
        ]
    },
)
"""One port or first-last."""


class Transparent(Section):
    """Only with mode: transparent (docs/transparent.md)."""

    mark: Annotated[int, whole(1, 2**32 - 1, "a socket mark")] | None = Field(
        default=None,
        description="Socket mark (SO_MARK) of the sidecar's own connections, for rules that exempt it by mark. Needs "
        "NET_ADMIN. null: none.",
    )
    networks: list[Annotated[str, NETWORK]] = Field(
        default_factory=list, description="Allowed destinations of redirected connections, as CIDRs; empty: all."
    )
    ports: list[Annotated[PortRange, PORTS]] = Field(
        default_factory=list, description="Allowed destination ports; empty: all."
    )
    tls_passthrough: Annotated[bool, BOOLEAN] = Field(
        default=True,
        description="Pass TLS without a key through, with byte quotas; false: refuse it.",
    )
