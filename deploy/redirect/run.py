"""`kquota redirect`: rules that redirect connections to the sidecar, put into the kernel by `nft` or
`iptables-restore`. Both keep all in objects of its own (table `kquota`, chains `KQUOTA_…`), so that they are replaced
as a whole and removed without a trace. Only connections made in this network namespace are examined, once each."""

from __future__ import annotations

import ipaddress
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

Tool = Literal["nft", "iptables"]
WhenDown = Literal["closed", "open"]

TABLE: Final = "kquota"
CHAIN: Final = "KQUOTA_OUTPUT"
ALIVE_S: Final = 5
"""With `when_down` open: how long connections are redirected after the last heartbeat (one a second)."""
MAX_PORTS: Final = 15
"""Ports of one multiport match (linux/netfilter/xt_multiport.h), where a range counts twice."""
JUMP: Final = f"-p tcp -j {CHAIN}"
CAP_NET_ADMIN: Final = 12
"""linux/capability.h"""
LIMIT_S: Final = 60.0
"""iptables waits while another process holds its lock."""
COMMANDS: Final[dict[Literal[4, 6], str]] = {4: "iptables", 6: "ip6tables"}
PACKAGES: Final[dict[Tool, str]] = {"nft": "nftables", "iptables": "iptables"}
IPV6: Final = Path("/proc/net/if_inet6")


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


def problem_of(rules: Rules, tool: Tool) -> str | None:
    """Why rules are invalid, and what was expected; None: they are valid."""
    if not rules.ports and not rules.networks:
        return "nothing to redirect: expected --port or --network, or both"
    if not (rules.exclude_uids or rules.exclude_gids or rules.exclude_marks):
        return (
            "the sidecar's own connections to brokers would be redirected to it: expected --exclude-uid (65532 in the "
            "image), --exclude-gid or --exclude-mark"
        )
    if not rules.ipv6 and rules.networks and not _of_family(rules.networks, 4):
        return "nothing to redirect: --network has only IPv6 networks, which --no-ipv6 leaves out"
    if rules.when_down == "open" and tool == "iptables":
        return "--when-down open needs nftables (--with nft)"
    return None


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


# ---- iptables -------------------------------------------------------------------------------------------------------


def iptables_install(rules: Rules, version: Literal[4, 6], *, jump: bool) -> str:
    """Input of `iptables-restore --noflush`: replaces an earlier chain. `jump`: OUTPUT does not jump to it yet."""
    lines = ["*nat", f":{CHAIN} - [0:0]"]
    lines += [f"-A {CHAIN} {rule}" for rule in _iptables_rules(rules, version)]
    if jump:
        lines.append(f"-A OUTPUT {JUMP}")
    return "\n".join([*lines, "COMMIT", ""])


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
    left = 0
    for one, text in zip(ports, _spans(ports, ":"), strict=True):
        size = 1 if len(one) == 1 else 2
        if size > left:
            matches.append([])
            left = MAX_PORTS
        matches[-1].append(text)
        left -= size
    return [f"-p tcp -m multiport --dports {','.join(match)}" for match in matches]


def choose(wanted: Tool | None) -> Tool:
    """The tool to use; nftables if none was chosen and both exist. Raises OSError."""
    found = next(filter(_has, list(PACKAGES) if wanted is None else [wanted]), None)
    if found is not None:
        return found
    if wanted is not None:
        raise OSError(f"{wanted} is not installed here: apt-get install {PACKAGES[wanted]}")
    raise OSError("neither nft nor iptables is installed here: apt-get install nftables (the redirect image has it)")


def _has(tool: Tool) -> bool:
    return shutil.which("nft" if tool == "nft" else "iptables-restore") is not None


def scripts(rules: Rules, tool: Tool) -> Iterator[tuple[list[str], str]]:
    """What `install` runs for valid rules: a command and its input. Raises OSError."""
    assert problem_of(rules, tool) is None
    if tool == "nft":
        yield ["nft", "-f", "-"], nft_install(rules)
        return
    yield _restore(4), iptables_install(rules, 4, jump=not _jumps(4))
    if rules.ipv6 and IPV6.exists():
        yield _restore(6), iptables_install(rules, 6, jump=not _jumps(6))


def install(rules: Rules, tool: Tool) -> None:
    """Put valid rules in force, replacing earlier ones of either tool. Raises OSError."""
    _insist_on_capability()
    if tool == "iptables" and rules.ipv6 and IPV6.exists() and shutil.which(_restore(6)[0]) is None:
        raise OSError("ip6tables is not installed here: apt-get install iptables, or use --no-ipv6")
    other: Tool = "iptables" if tool == "nft" else "nft"
    for command, text in scripts(rules, tool):
        _run(command, text)
    if _has(other):
        _remove(other)  # two sets of rules would contradict each other
    if tool == "iptables" and not rules.ipv6:
        _remove_family(6)


def remove() -> list[Tool]:
    """Remove our rules, whichever tool made them; returns the tools that had any. Raises OSError."""
    return [tool for tool in _usable() if _remove(tool)]


def show() -> list[str]:
    """Our rules as the tools print them; empty if there are none. Raises OSError."""
    tools = _usable()
    found = []
    if "nft" in tools and _nft_table():
        found.append(_run(["nft", "list", "table", "inet", TABLE]).stdout.rstrip())
    if "iptables" in tools:
        for version in COMMANDS:
            if lines := _rules(version):
                found.append("\n".join([f"# {COMMANDS[version]} -t nat", *lines]))
    return found


def _usable() -> list[Tool]:
    """The tools that are there. Raises OSError if there is none, or without the capability that they need."""
    tools: list[Tool] = [tool for tool in PACKAGES if _has(tool)]
    if not tools:
        choose(None)
    _insist_on_capability()
    return tools


def _remove(tool: Tool) -> bool:
    if tool == "iptables":
        removed = [_remove_family(version) for version in COMMANDS]
        return any(removed)
    if not _nft_table():
        return False
    _run(["nft", "delete", "table", "inet", TABLE])
    return True


def _remove_family(version: Literal[4, 6]) -> bool:
    if not _rules(version):
        return False
    jumps = [f"-D OUTPUT {JUMP}"] * _jumps(version)
    _run(_restore(version), "\n".join(["*nat", f":{CHAIN} - [0:0]", *jumps, f"-X {CHAIN}", "COMMIT", ""]))
    return True


def _nft_table() -> bool:
    return _attempt(["nft", "list", "table", "inet", TABLE]).returncode == 0


def _rules(version: Literal[4, 6]) -> list[str]:
    """Our rules of a family, as its tool prints them; empty if there are none, or no such tool."""
    if shutil.which(COMMANDS[version]) is None:
        return []
    text = _attempt([COMMANDS[version], "-w", "-t", "nat", "-S"]).stdout
    return [line for line in text.splitlines() if CHAIN in line]


def _jumps(version: Literal[4, 6]) -> int:
    """How many rules lead to our chain: 0 if it is incomplete, several if saved rules were restored over it."""
    return _rules(version).count(f"-A OUTPUT {JUMP}")


def _restore(version: Literal[4, 6]) -> list[str]:
    return [f"{COMMANDS[version]}-restore", "--noflush", "--wait"]


def _attempt(command: Sequence[str], text: str | None = None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, input=text, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise OSError(f"{command[0]}: {error}") from None


def _run(command: Sequence[str], text: str | None = None) -> subprocess.CompletedProcess[str]:
    done = _attempt(command, text)
    if done.returncode != 0:
        output = " ".join((done.stderr or done.stdout).split())
        other = "; --with iptables may work on this kernel" if command[0] == "nft" else ""
        raise OSError(f"{' '.join(command)} failed with exit code {done.returncode}: {output}{other}")
    return done


def _insist_on_capability() -> None:
    """Asks the kernel rather than checking the user id: in a container root may not have it."""
    for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name == "CapEff" and not int(value, 16) >> CAP_NET_ADMIN & 1:
            raise OSError(
                "this needs the capability NET_ADMIN: run it in an init container with securityContext {runAsUser: 0, "
                "runAsNonRoot: false, capabilities: {drop: [ALL], add: [NET_ADMIN]}}, or as root of the host "
                "(docs/transparent.md)"
            )
