"""Lists of networks, as CIDRs."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address, ip_network

from quota.connections import canonical_address


class Networks:
    """Some networks, of both families."""

    def __init__(self, networks: Sequence[str]) -> None:
        self._networks = [ip_network(network) for network in networks]

    def __bool__(self) -> bool:
        return bool(self._networks)

    def __contains__(self, host: str) -> bool:
        """Whether an address is in one of them. An IPv4-mapped address is IPv4."""
        address = ip_address(canonical_address(host))
        return any(network.version == address.version and address in network for network in self._networks)
