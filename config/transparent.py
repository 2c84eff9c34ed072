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
        description="SO_MARK of every connection that the sidecar opens, so that redirect rules can exempt it by mark "
        "instead of by user; needs the capability NET_ADMIN. null: no mark.",
    )
    networks: list[Annotated[str, NETWORK]] = Field(
        default_factory=list, description="Where redirected connections may go, as CIDRs; empty: anywhere."
    )
    ports: list[Annotated[PortRange, PORTS]] = Field(
        default_factory=list, description="Ports that redirected connections may go to; empty: any."
    )
    tls_passthrough: Annotated[bool, BOOLEAN] = Field(
        default=True,
        description="TLS that the sidecar has no key for is passed on, with byte quotas alone; false: refused.",
    )
