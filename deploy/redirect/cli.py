"""The `kquota redirect` commands: their options, and what they print."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer

from deploy.redirect.run import Rules, RulesError
from proxy.app.common.text import (
    FAILED,
    WRONG_USE,
    AsJson,
    Form,
    OutputForm,
    errors_reported,
    flag,
    option,
    print_data,
    say,
)

app = typer.Typer(
    help="Redirect an application's connections to a sidecar in transparent mode (needs NET_ADMIN).",
    no_args_is_help=True,
    rich_markup_mode=None,
)
With = Annotated[Literal["auto", "nft", "iptables"], flag("--with", "auto: nft if installed.")]
DryRun = Annotated[bool, flag("--dry-run", "Print the rules, change nothing.")]


@app.command(short_help="Install rules.")
def install(
    config: Annotated[
        Path | None, option("--config -c", "FILE", "Take --to-port and --exclude-mark from the sidecar's file.")
    ] = None,
    to_port: Annotated[
        int | None, option("--to-port", "PORT", "Port of the sidecar (9092).", min=1, max=65_535)
    ] = None,
    ports: Annotated[list[str] | None, option("--port", "P", "Destination port or range; repeatable.")] = None,
    networks: Annotated[
        list[str] | None, option("--network", "CIDR", "Destinations; repeatable. With --port, both must match.")
    ] = None,
    exclude_ports: Annotated[
        list[str] | None, option("--exclude-port", "P", "Do not redirect these destination ports; repeatable.")
    ] = None,
    exclude_networks: Annotated[
        list[str] | None, option("--exclude-network", "CIDR", "Do not redirect these destinations; repeatable.")
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
        flag("--when-down", "While no sidecar runs: refuse new connections, or let them connect directly."),
    ] = "closed",
    tool: With = "auto",
    dry_run: DryRun = False,
) -> None:
    """Redirect outgoing connections of this network namespace. Replaces earlier rules of kquota."""
    from deploy.redirect import run as redirect_run

    if config is not None:
        port, mark = _of_file(config)
        to_port = to_port or port
        exclude_marks = [*(exclude_marks or []), *([mark] if mark is not None else [])]
    rules = Rules(
        to_port=to_port or 9092,
        ports=tuple(map(_port_range, ports or ())),
        networks=tuple(map(_network, networks or ())),
        exclude_ports=tuple(map(_port_range, exclude_ports or ())),
        exclude_networks=tuple(map(_network, exclude_networks or ())),
        exclude_uids=tuple(exclude_uids or ()),
        exclude_gids=tuple(exclude_gids or ()),
        exclude_marks=tuple(dict.fromkeys(exclude_marks or ())),
        ipv6=ipv6,
        when_down=when_down,
    )
    try:
        chosen = tool if dry_run and tool != "auto" else redirect_run.choose(None if tool == "auto" else tool)
        if dry_run:
            for command, text in redirect_run.scripts(rules, chosen):
                typer.echo(f"# {' '.join(command)}\n{text}", nl=False)
            return
        redirect_run.install(rules, chosen)
    except RulesError as error:
        _fail(str(error), WRONG_USE)
    except redirect_run.RedirectError as error:
        _fail(str(error), FAILED)
    typer.echo(f"redirecting to port {rules.to_port}, by {chosen}")


@app.command(short_help="Remove rules.")
def remove(dry_run: DryRun = False) -> None:
    """Remove the rules of `install` (nft and iptables). Redirected connections stay redirected until they end."""
    from deploy.redirect import run as redirect_run

    try:
        if dry_run:
            shown = redirect_run.show()
            typer.echo("\n".join(["# would be removed:", *shown]) if shown else "no rules of kquota")
            return
        tools = redirect_run.remove()
    except redirect_run.RedirectError as error:
        _fail(str(error), FAILED)
    typer.echo(f"removed the rules of {' and '.join(tools)}" if tools else "no rules of kquota")


@app.command(short_help="Show installed rules.")
def show(
    form: OutputForm = Form.TABLE,
    as_json: AsJson = False,
) -> None:
    """Print kquota's rules from the kernel. Exits with 1 if there are none."""
    from deploy.redirect import run as redirect_run

    try:
        shown = redirect_run.show()
    except redirect_run.RedirectError as error:
        _fail(str(error), FAILED)
    if (form := Form.JSON if as_json else form).is_data:
        print_data({"rules": "\n".join(shown).splitlines()}, form)
        raise typer.Exit(0 if shown else FAILED)
    if not shown:
        _fail("no rules of kquota", FAILED)
    typer.echo("\n".join(shown))


def _fail(text: str, code: int) -> NoReturn:
    say(f"error: {text}", err=True)
    raise typer.Exit(code)


def _of_file(path: Path) -> tuple[int, int | None]:
    from config.load import load

    with errors_reported():
        config = load(path)
    if config.mode != "transparent":
        _fail(f"{path}: mode is {config.mode}: connections that are redirected need mode: transparent", WRONG_USE)
    if config.listen.port == 0:
        _fail(
            f"{path}: listen.port is 0, any free one: expected the port that connections are to be sent to", WRONG_USE
        )
    return config.listen.port, config.transparent.mark


def _port_range(text: str) -> range:
    from config.types import port_range

    found = port_range(text)
    if found is None:
        raise typer.BadParameter(
            f"expected a port or first-last from 1 to 65535, such as 9092 or 9092-9094, not {text!r}"
        )
    return found.all


def _network(text: str) -> str:
    import ipaddress

    try:
        return str(ipaddress.ip_network(text))
    except ValueError as error:
        raise typer.BadParameter(f"expected a network or an address, such as 10.0.0.0/8: {error}") from None
