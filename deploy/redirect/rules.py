"""Rules that redirect an application's connections to the sidecar, as text for `nft` or `iptables-restore`.

Both tools keep everything in objects of its own (table `kquota`, chains `KQUOTA_…`), so that it is replaced as a whole
and removed without a trace; no other rules are touched. Only connections made in this network namespace are examined
(hook output), and each only once, when it is made.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

Tool = Literal["nft", "iptables"]
WhenDown = Literal["closed", "open"]

TABLE: Final = "kquota"
"""The nftables table, family inet."""
CHAIN: Final = "KQUOTA_OUTPUT"
"""The iptables chain, in the table nat."""
ALIVE_S: Final = 5
"""With `when_down` open: connections are still redirected this long after the sidecar's last heartbeat (one a
second)."""
MAX_PORTS: Final = 15
"""Ports of one multiport match (linux/netfilter/xt_multiport.h), where a range counts twice."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What is redirected, and what is exempt. Loopback destinations always are."""

    to_port: int
    """Where the sidecar listens, on every local address that connections come from."""
    ports: tuple[range, ...] = ()
    """Destination ports that are redirected; empty: all of `networks`."""
    networks: tuple[str, ...] = ()
    """Destinations that are redirected, as CIDRs; empty: all with `ports`."""
    exclude_ports: tuple[range, ...] = ()
    exclude_networks: tuple[str, ...] = ()
    exclude_uids: tuple[int, ...] = ()
    exclude_gids: tuple[int, ...] = ()
    exclude_marks: tuple[int, ...] = ()
    ipv6: bool = True
    when_down: WhenDown = "closed"
    """Without a running sidecar, new connections are refused (closed) or go to their destination directly (open)."""


class RulesError(ValueError):
    """Invalid rules; the message says what was expected."""


def check(rules: Rules, tool: Tool) -> None:
    """Raises RulesError."""
    if not rules.ports and not rules.networks:
        raise RulesError("nothing to redirect: expected --port or --network, or both")
    if not (rules.exclude_uids or rules.exclude_gids or rules.exclude_marks):
        raise RulesError(
            "the sidecar's own connections to brokers would be redirected to it: expected --exclude-uid (65532 in the "
            "image), --exclude-gid or --exclude-mark"
        )
    if rules.when_down == "open" and tool == "iptables":
        raise RulesError("--when-down open needs nftables (--with nft)")


def _spans(ports: Sequence[range], dash: str) -> list[str]:
    return [str(one.start) if len(one) == 1 else f"{one.start}{dash}{one.stop - 1}" for one in ports]


def _of_family(networks: Sequence[str], version: int) -> list[str]:
    return [one for one in networks if ipaddress.ip_network(one).version == version]


# ---- nftables -------------------------------------------------------------------------------------------------------


def nft_install(rules: Rules) -> str:
    """Input of `nft -f -`: one transaction, in which the table of an earlier install is replaced."""
    lines = [f"table inet {TABLE}", f"delete table inet {TABLE}", f"table inet {TABLE} {{"]
    if rules.when_down == "open":
        # The sidecar sends a datagram to its own port periodically. Redirection applies while the set contains the
        # packet's key, the network layer's protocol: IPv4 as long as heartbeats come by IPv4, IPv6 likewise.
        lines += [
            "  set alive {",
            "    type ether_type",
            "    size 2",
            "    flags dynamic,timeout",
            "  }",
            "  chain heartbeat {",
            "    type filter hook output priority filter; policy accept;",
            f'    oifname "lo" udp dport {rules.to_port} update @alive {{ meta protocol timeout {ALIVE_S}s }}',
            "  }",
        ]
    lines += ["  chain output {", "    type nat hook output priority -100; policy accept;"]
    lines += [f"    {line}" for line in _nft_rules(rules)]
    return "\n".join([*lines, "  }", "}", ""])


def _nft_rules(rules: Rules) -> list[str]:
    def one_of(match: str, values: Sequence[object], verdict: str) -> list[str]:
        return [f"{match} {{ {', '.join(map(str, values))} }} {verdict}"] if values else []

    lines = ["meta l4proto != tcp return"]
    if not rules.ipv6:
        lines.append("meta nfproto ipv6 return")
    lines += one_of("meta skuid", rules.exclude_uids, "return")
    lines += one_of("meta skgid", rules.exclude_gids, "return")
    lines += one_of("meta mark", rules.exclude_marks, "return")
    lines += one_of("ip daddr", ["127.0.0.0/8", *_of_family(rules.exclude_networks, 4)], "return")
    lines += one_of("ip6 daddr", ["::1", *_of_family(rules.exclude_networks, 6)], "return")
    lines += one_of("tcp dport", _spans(rules.exclude_ports, "-"), "return")
    ports = "".join(one_of("tcp dport", _spans(rules.ports, "-"), "")) or "meta l4proto tcp "
    alive = "meta protocol @alive " if rules.when_down == "open" else ""
    verdict = f"{ports}{alive}redirect to :{rules.to_port}"
    if not rules.networks:
        return [*lines, verdict]
    lines += one_of("ip daddr", _of_family(rules.networks, 4), verdict)
    lines += one_of("ip6 daddr", _of_family(rules.networks, 6), verdict)
    return lines


def nft_remove() -> str:
    """Input of `nft -f -` that removes the table, whether it exists or not."""
    return f"table inet {TABLE}\ndelete table inet {TABLE}\n"


# ---- iptables -------------------------------------------------------------------------------------------------------


def iptables_install(rules: Rules, version: Literal[4, 6], *, jump: bool) -> str:
    """Input of `iptables-restore --noflush` (or ip6tables-restore): one transaction, which replaces the chain of an
    earlier install. `jump`: the chain OUTPUT does not jump to it yet."""
    lines = ["*nat", f":{CHAIN} - [0:0]"]
    lines += [f"-A {CHAIN} {rule}" for rule in _iptables_rules(rules, version)]
    if jump:
        lines.append(f"-A OUTPUT {JUMP}")
    return "\n".join([*lines, "COMMIT", ""])


JUMP: Final = f"-p tcp -j {CHAIN}"
"""The one rule in a chain that is not ours."""


def _iptables_rules(rules: Rules, version: Literal[4, 6]) -> list[str]:
    lines = [f"-m owner --uid-owner {uid} -j RETURN" for uid in rules.exclude_uids]
    lines += [f"-m owner --gid-owner {gid} -j RETURN" for gid in rules.exclude_gids]
    lines += [f"-m mark --mark {mark:#x} -j RETURN" for mark in rules.exclude_marks]
    loopback = "127.0.0.0/8" if version == 4 else "::1/128"
    lines += [f"-d {one} -j RETURN" for one in [loopback, *_of_family(rules.exclude_networks, version)]]
    lines += [f"{match} -j RETURN" for match in _multiports(rules.exclude_ports)]
    networks = [f"-d {one} " for one in _of_family(rules.networks, version)] if rules.networks else [""]
    ports = _multiports(rules.ports) or ["-p tcp"]
    lines += [f"{network}{port} -j REDIRECT --to-ports {rules.to_port}" for network in networks for port in ports]
    return lines


def _multiports(ports: Sequence[range]) -> list[str]:
    matches: list[list[str]] = []
    room = 0
    for one, text in zip(ports, _spans(ports, ":"), strict=True):
        size = 1 if len(one) == 1 else 2
        if size > room:
            matches.append([])
            room = MAX_PORTS
        matches[-1].append(text)
        room -= size
    return [f"-p tcp -m multiport --dports {','.join(match)}" for match in matches]


def iptables_remove() -> str:
    """Input of `iptables-restore --noflush` that removes our chain and the jump to it, both of which must exist."""
    return f"*nat\n:{CHAIN} - [0:0]\n-D OUTPUT {JUMP}\n-X {CHAIN}\nCOMMIT\n"
