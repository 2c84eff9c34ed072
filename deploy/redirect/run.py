"""`kquota redirect`: puts the rules into the kernel with the tools that administrators know.

Idempotent in both directions. A missing program or capability is reported before anything is changed.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Literal

from deploy.redirect.rules import (
    CHAIN,
    JUMP,
    TABLE,
    Rules,
    Tool,
    check,
    iptables_install,
    iptables_remove,
    nft_install,
    nft_remove,
)

CAP_NET_ADMIN: Final = 12
"""linux/capability.h"""
LIMIT_S: Final = 60.0
"""iptables waits while another process holds its lock."""
COMMANDS: Final[dict[Literal[4, 6], str]] = {4: "iptables", 6: "ip6tables"}
PACKAGES: Final[dict[Tool, str]] = {"nft": "nftables", "iptables": "iptables"}
IPV6: Final = Path("/proc/net/if_inet6")


class RedirectError(Exception):
    """The rules could not be put in force; the message says why and what to do."""


def choose(wanted: Tool | None) -> Tool:
    """The tool to use; nftables if none was chosen and both exist. Raises RedirectError."""
    if wanted is not None:
        if not _has(wanted):
            raise RedirectError(f"{wanted} is not installed here: apt-get install {PACKAGES[wanted]}")
        return wanted
    for tool in PACKAGES:
        if _has(tool):
            return tool
    raise RedirectError(
        "neither nft nor iptables is installed here: apt-get install nftables (the image of the target redirect has it)"
    )


def _has(tool: Tool) -> bool:
    return shutil.which("nft" if tool == "nft" else "iptables-restore") is not None


def scripts(rules: Rules, tool: Tool) -> Iterator[tuple[list[str], str]]:
    """What `install` runs: a command and its input. Raises RulesError."""
    check(rules, tool)
    if tool == "nft":
        yield ["nft", "-f", "-"], nft_install(rules)
        return
    yield _restore(4), iptables_install(rules, 4, jump=not _jumps(4))
    if rules.ipv6 and IPV6.exists():
        yield _restore(6), iptables_install(rules, 6, jump=not _jumps(6))


def install(rules: Rules, tool: Tool) -> None:
    """Put the rules in force, replacing earlier ones of either tool. Raises RedirectError, RulesError."""
    todo = list(scripts(rules, tool)) if tool == "nft" else None
    _insist_on_capability()
    other: Tool = "iptables" if tool == "nft" else "nft"
    for command, text in todo if todo is not None else scripts(rules, tool):
        _run(command, text)
    if _has(other):
        _remove(other)  # two sets of rules would contradict each other
    if tool == "iptables" and not rules.ipv6:
        _remove_family(6)


def remove() -> list[Tool]:
    """Remove our rules, whichever tool made them; returns the tools that had any. Raises RedirectError."""
    return [tool for tool in _usable() if _remove(tool)]


def show() -> list[str]:
    """Our rules as the tools print them; empty if there are none. Raises RedirectError."""
    tools = _usable()
    found = []
    if "nft" in tools and _nft_table():
        found.append(_run(["nft", "list", "table", "inet", TABLE]).stdout.rstrip())
    if "iptables" in tools:
        for version in COMMANDS:
            if _chain(version):
                text = _run([COMMANDS[version], "-w", "-t", "nat", "-S"]).stdout
                lines = [line for line in text.splitlines() if CHAIN in line]
                found.append("\n".join([f"# {COMMANDS[version]} -t nat", *lines]))
    return found


def _usable() -> list[Tool]:
    """The tools that are there. Raises RedirectError if there is none, or without the capability that they need."""
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
    _run(["nft", "-f", "-"], nft_remove())
    return True


def _remove_family(version: Literal[4, 6]) -> bool:
    if not _chain(version):
        return False
    if not _jumps(version):  # incomplete: edited by hand, or an interrupted install
        _run([COMMANDS[version], "-w", "-t", "nat", "-A", "OUTPUT", *JUMP.split()])
    _run(_restore(version), iptables_remove())
    return True


def _nft_table() -> bool:
    return _try(["nft", "list", "table", "inet", TABLE])


def _chain(version: Literal[4, 6]) -> bool:
    return _try([COMMANDS[version], "-w", "-t", "nat", "-n", "-L", CHAIN])


def _jumps(version: Literal[4, 6]) -> bool:
    return _try([COMMANDS[version], "-w", "-t", "nat", "-C", "OUTPUT", *JUMP.split()])


def _restore(version: Literal[4, 6]) -> list[str]:
    return [f"{COMMANDS[version]}-restore", "--noflush", "--wait"]


def _try(command: Sequence[str]) -> bool:
    return subprocess.run(command, capture_output=True, timeout=LIMIT_S, check=False).returncode == 0


def _run(command: Sequence[str], text: str | None = None) -> subprocess.CompletedProcess[str]:
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RedirectError(f"{command[0]}: {error}") from None
    if done.returncode != 0:
        said = " ".join((done.stderr or done.stdout).split())
        other = "; --with iptables may work on this kernel" if command[0] == "nft" else ""
        raise RedirectError(f"{' '.join(command)} failed with exit code {done.returncode}: {said}{other}")
    return done


def _insist_on_capability() -> None:
    """Asks the kernel rather than checking the user id: in a container root may not have it."""
    for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name == "CapEff" and not int(value, 16) >> CAP_NET_ADMIN & 1:
            raise RedirectError(
                "this needs the capability NET_ADMIN: run it in an init container with securityContext "
                "{runAsUser: 0, runAsNonRoot: false, capabilities: {drop: [ALL], add: [NET_ADMIN]}}, or as root "
                "(docs/transparent.md)"
            )
