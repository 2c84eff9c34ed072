"""The `kquota redirect` commands: their options, and what they print."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from deploy.redirect import run
from proxy.app.common import text
from proxy.app.common.text import FAILED, WRONG_USE, AsJson, Form, OutputForm, flag, option

app = typer.Typer(
    help="Redirect an application's connections to a sidecar in transparent mode (needs NET_ADMIN).",
    no_args_is_help=True,
    rich_markup_mode=None,
)
DryRun = Annotated[bool, flag("--dry-run", "Print the rules, change nothing.")]


def _port_range(written: str) -> range:
    from config.types import port_range

    found = port_range(written)
    if found is None:
        raise typer.BadParameter(
            f"expected a port or first-last from 1 to 65535, such as 9092 or 9092-9094, not {written!r}"
        )
    return found


def _network(written: str) -> str:
    try:
        return str(ipaddress.ip_network(written))
    except ValueError as error:
        raise typer.BadParameter(f"expected a network or an address, such as 10.0.0.0/8: {error}") from None


@app.command(short_help="Install rules.")
def install(
    config: Annotated[
        Path | None, option("--config -c", "FILE", "Take --to-port and --exclude-mark from the sidecar's file.")
    ] = None,
    to_port: Annotated[
        int | None, option("--to-port", "PORT", "Port that the sidecar listens on (9092).", min=1, max=65_535)
    ] = None,
    ports: Annotated[
        list[range] | None, option("--port", "P", "Destination port or range; repeatable.", parser=_port_range)
    ] = None,
    networks: Annotated[
        list[str] | None,
        option("--network", "CIDR", "Destinations; repeatable. With --port, both must match.", parser=_network),
    ] = None,
    exclude_ports: Annotated[
        list[range] | None,
        option("--exclude-port", "P", "Do not redirect these destination ports; repeatable.", parser=_port_range),
    ] = None,
    exclude_networks: Annotated[
        list[str] | None,
        option("--exclude-network", "CIDR", "Do not redirect these destinations; repeatable.", parser=_network),
    ] = None,
    exclude_uids: Annotated[
        list[int] | None,
        option(
            "--exclude-uid",
            "UID",
            "Do not redirect this user's connections, such as the sidecar's (65532); repeatable.",
            min=0,
        ),
    ] = None,
    exclude_gids: Annotated[
        list[int] | None, option("--exclude-gid", "GID", "Do not redirect this group's connections; repeatable.", min=0)
    ] = None,
    exclude_marks: Annotated[
        list[int] | None, option("--exclude-mark", "MARK", "Do not redirect sockets with this mark; repeatable.", min=1)
    ] = None,
    ipv6: Annotated[bool, flag("--ipv6/--no-ipv6", "Redirect IPv6 connections as well.")] = True,
    when_down: Annotated[
        Literal["closed", "open"],
        flag("--when-down", "While no sidecar runs, closed: refuse new connections; open: connect directly."),
    ] = "closed",
    tool: Annotated[
        Literal["auto", "nft", "iptables"], flag("--with", "auto: nft if installed, else iptables.")
    ] = "auto",
    dry_run: DryRun = False,
) -> None:
    """Redirect outgoing connections of this network namespace. Replaces earlier rules of kquota. Needs --port or
    --network, and an --exclude option for the sidecar's own connections."""
    if config is not None:
        port, mark = _of_file(config)
        to_port = to_port or port
        exclude_marks = [*(exclude_marks or []), *([mark] if mark is not None else [])]
    rules = run.Rules(
        to_port=to_port or 9092,
        ports=tuple(ports or ()),
        networks=tuple(networks or ()),
        exclude_ports=tuple(exclude_ports or ()),
        exclude_networks=tuple(exclude_networks or ()),
        exclude_uids=tuple(exclude_uids or ()),
        exclude_gids=tuple(exclude_gids or ()),
        exclude_marks=tuple(dict.fromkeys(exclude_marks or ())),
        ipv6=ipv6,
        when_down=when_down,
    )
    with text.errors_reported():
        chosen = tool if dry_run and tool != "auto" else run.choose(None if tool == "auto" else tool)
        if (problem := run.problem_of(rules, chosen)) is not None:
            text.fail(problem, WRONG_USE)
        if dry_run:
            done = "".join(f"# {' '.join(command)}\n{script}" for command, script in run.scripts(rules, chosen))
        else:
            run.install(rules, chosen)
            done = f"redirecting to port {rules.to_port}, by {chosen}\n"
    typer.echo(done, nl=False)


@app.command(short_help="Remove rules.")
def remove(dry_run: DryRun = False) -> None:
    """Remove the rules of `install` (nft and iptables). Redirected connections stay redirected until they end."""
    with text.errors_reported():
        found: Sequence[str] = run.show() if dry_run else run.remove()
    done = "\n".join(["# would be removed:", *found]) if dry_run else f"removed the rules of {' and '.join(found)}"
    typer.echo(done if found else "no rules of kquota")


@app.command(short_help="Show installed rules.")
def show(form: OutputForm = Form.TABLE, as_json: AsJson = False) -> None:
    """Print kquota's rules from the kernel. Exits with 1 if there are none."""
    with text.errors_reported():
        shown = run.show()
    if (form := Form.JSON if as_json else form).is_data:
        text.print_data({"rules": "\n".join(shown).splitlines()}, form)
        raise typer.Exit(0 if shown else FAILED)
    if not shown:
        text.fail("no rules of kquota")
    typer.echo("\n".join(shown))


def _of_file(path: Path) -> tuple[int, int | None]:
    from config.load import load

    with text.errors_reported():
        config = load(path)
    if config.mode != "transparent":
        text.fail(f"{path}: mode is {config.mode}: connections that are redirected need mode: transparent", WRONG_USE)
    if config.listen.port == 0:
        text.fail(f"{path}: listen.port is 0 (any free port): expected the port to redirect to", WRONG_USE)
    return config.listen.port, config.transparent.mark
