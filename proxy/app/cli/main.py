"""The `kquota` command. Exit codes: 0 ok, 1 failed, 2 usage or configuration error."""

from __future__ import annotations

import errno
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NoReturn

import typer

from config.problems import ConfigError
from deploy.redirect import cli as redirect_cli
from proxy.app.cli import imports
from proxy.app.common.start import blocked_imports, held_signals
from proxy.app.common.text import (
    FAILED,
    WRONG_USE,
    AsJson,
    Form,
    OutputForm,
    ascii_json,
    errors_reported,
    fail,
    flag,
    option,
    print_data,
    say,
    say_problems,
    show,
)

if TYPE_CHECKING:
    from config.model import Config
    from quota.table import QuotaTable

ADMIN_VARIABLE = "KQUOTA_ADMIN"
ANALYSIS_PYTHON_VARIABLE = "KQUOTA_ANALYSIS_PYTHON"
_ROOT: Final = Path(__file__).resolve().parents[3]

app = typer.Typer(
    name="kquota",
    help="Kafka client quotas, enforced by a sidecar in front of any cluster.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(redirect_cli.app, name="redirect", short_help="Redirect connections to a transparent sidecar.")
app.add_typer(imports.app, name="import", short_help="Import quotas from a cluster or from Strimzi KafkaUsers.")
_CONFIG = option("--config -c", "FILE", "The configuration file (YAML).", envvar="KQUOTA_CONFIG")
ConfigFile = Annotated[Path, _CONFIG]
RowOrder = Literal["use", "throttled", "rate", "name"]
PodName = Annotated[
    str | None,
    option(
        "--pod",
        "NAMESPACE/NAME",
        "Ask the sidecar of this pod, through kubectl port-forward; append :PORT if its admin port is not 9404.",
    ),
]
AdminUrl = Annotated[
    str | None,
    option("--admin", "URL", "URL of a sidecar's admin port; default: KQUOTA_ADMIN, else http://127.0.0.1:9404."),
]


def _on_paper(path: Path) -> tuple[Config, QuotaTable]:
    """A configuration, and its limits with those of its overlay; says on stderr if they do not come from it alone."""
    from config.load import load
    from config.overlay import table_in_force
    from proxy.app.cli.check import overlay_text

    with errors_reported():
        config = load(path, on_paper=True)
        table = table_in_force(config)
    if config.quota_settings.source == "cluster":
        text = "warning: quotas.source is cluster: this file does not have the limits, ask a running sidecar (--admin)"
        say(text, err=True)
    elif config.quota_settings.overlay is not None:
        say(f"note: with {overlay_text(config)}", err=True)
    return config, table


def _admin_of(context: typer.Context, explicit: str | None, pod: str | None) -> str:
    """The admin port to ask: as given, a pod's while the command runs, KQUOTA_ADMIN's, or this machine's."""
    from proxy.app.cli.admin_client import ADMIN_PORT, forwarded

    if pod is None:
        return explicit or os.environ.get(ADMIN_VARIABLE) or f"http://127.0.0.1:{ADMIN_PORT}"
    if explicit is not None:
        raise typer.BadParameter("expected --admin or --pod, not both")
    with errors_reported():
        url: str = context.with_resource(forwarded(pod))
    return url


def _print_version(wanted: bool) -> None:
    if wanted:
        version(Form.TABLE, as_json=False)
        raise typer.Exit


@app.callback()
def _any(
    wanted: Annotated[
        bool, flag("--version", "Show version and build.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


@app.command(short_help="Run the sidecar.")
def run(
    config: ConfigFile,
    admin_port: Annotated[
        int | None,
        option(
            "--admin-port", "PORT", "Admin port; overrides admin.port.", min=1, max=65_535, envvar="KQUOTA_ADMIN_PORT"
        ),
    ] = None,
) -> None:
    """Run the sidecar until SIGTERM or Ctrl-C, then let requests in flight finish."""
    with held_signals():
        with blocked_imports():
            from proxy.app.run import main as run_main  # trio and starlette: not needed by the other commands

        with errors_reported():
            code = run_main(config, admin_port)
    raise typer.Exit(code)


@app.command(short_help="Validate and explain a configuration file.")
def check(
    # Hidden in the list of arguments, because typer writes <path> there; the usage and the text below have it.
    file: Annotated[Path | None, typer.Argument(metavar="FILE", hidden=True)] = None,
    config: Annotated[Path | None, _CONFIG] = None,
    form: OutputForm = Form.TABLE,
    as_json: AsJson = False,
    on_paper: Annotated[
        bool, flag("--on-paper", "Allow a file without upstream, such as one with quotas only.")
    ] = False,
    connect: Annotated[
        bool, flag("--connect", "Also connect to each bootstrap address and each broker, as a sidecar does.")
    ] = False,
) -> None:
    """Validate and explain a configuration: FILE or --config. Errors name line and setting."""
    from config.load import load
    from config.overlay import table_in_force
    from proxy.app.cli.check import all_warnings, summary_json, summary_text

    form = Form.JSON if as_json else form
    config = file or config
    if config is None:
        raise typer.BadParameter("expected a file: kquota check FILE")
    try:
        loaded = load(config, on_paper=on_paper)
        table = table_in_force(loaded)
    except ConfigError as error:
        if form.is_data:
            problems = [problem.as_json() for problem in error.problems]
            print_data({"file": str(config), "ok": False, "problems": problems, "warnings": [], "quotas": []}, form)
        else:
            say_problems(error.problems)
        raise typer.Exit(WRONG_USE) from None
    cluster: dict[str, Any] | None = None
    if connect:
        from proxy.app.cli.imports_cluster import connection_json, connection_text

        with errors_reported():
            cluster = connection_json(loaded)
    if form.is_data:
        print_data(summary_json(str(config), loaded, table) | ({} if cluster is None else {"cluster": cluster}), form)
    else:
        say(summary_text(str(config), loaded, table))
        if cluster is not None:
            say("\n" + connection_text(cluster))
        sys.stdout.flush()  # the summary first, also when both go to the same pipe
        for warning in all_warnings(loaded):
            say(f"warning: {warning}", err=True)
    if cluster is not None and not cluster["ok"]:
        raise typer.Exit(FAILED)


@app.command(short_help="Show a client's effective quotas, current usage and why it is throttled.")
def explain(
    context: typer.Context,
    user: Annotated[
        str | None, option("--user", "U", "User (principal name); default: the user of connections without a login.")
    ] = None,
    client_id: Annotated[str | None, option("--client-id", "C", "Client-id; default: the empty client-id.")] = None,
    address: Annotated[str | None, option("--ip", "A", "Also show connection limits of this address.")] = None,
    config: Annotated[
        Path | None, option("--config -c", "FILE", "Explain this file, without a sidecar.", envvar="KQUOTA_CONFIG")
    ] = None,
    admin: AdminUrl = None,
    pod: PodName = None,
    form: OutputForm = Form.TABLE,
    as_json: AsJson = False,
) -> None:
    """Show a client's quotas: all eight levels, the effective one, the clients that share the counter.

    A running sidecar also shows usage, the delay of the next request and the last throttles. Without --user,
    --client-id and --ip it shows the clients that it throttles now.
    """
    from proxy.app.admin.explain_text import explanation_text, throttled_text
    from quota.connections import canonical_address

    try:
        address = None if address is None else canonical_address(address)
    except ValueError as error:
        raise typer.BadParameter(f"--ip: {error}") from None
    if admin is None and pod is None and config is not None:
        answer = _explain_on_paper(config, user, client_id or "", address)
        text = explanation_text(answer)
    else:
        from proxy.app.cli.admin_client import get_json, understood

        admin = _admin_of(context, admin, pod)
        given = {"user": user, "client_id": client_id, "ip": address}
        query = {name: value for name, value in given.items() if value is not None}
        with errors_reported(), understood(admin):
            answer = get_json(admin, "/explain" if query else "/throttled", query)
            text = explanation_text(answer) if query else throttled_text(answer, admin)
    show(answer, text, Form.JSON if as_json else form)


def _explain_on_paper(config: Path, user: str | None, client_id: str, address: str | None) -> dict[str, Any]:
    from proxy.app.admin.explain import explanation_json, identity_on_paper
    from quota.ledger import Ledger

    loaded, table = _on_paper(config)
    name, identity = identity_on_paper(loaded, user)
    addresses = [] if address is None else [address]
    return explanation_json(Ledger(table), name, client_id, identity=identity, at=None, addresses=addresses)


@app.command(short_help="Simulate quotas against a list of requests.")
def simulate(
    config: ConfigFile,
    compare: Annotated[bool, flag("--compare", "Show the decision of each controller_mutation_algorithm.")] = False,
) -> None:
    """Charge events (JSON lines on stdin) on a simulated clock, and print a JSON line per event. Pacing and max_mute
    do not apply.

    An event: {"t_ms": 0, "kind": "produce", "client_id": "etl", "amount": 1000}
    """
    from proxy.app.cli.simulate import run as run_simulation

    failed = False
    loaded, table = _on_paper(config)
    for good, line in run_simulation(loaded, sys.stdin.buffer, table=table, compare=compare):
        failed |= not good
        stream = sys.stdout if good else sys.stderr
        stream.write(ascii_json(line) + "\n")
        stream.flush()  # so that a program can converse over two pipes
    if failed:
        raise typer.Exit(WRONG_USE)


@app.command(short_help="Show the usage of each quota, live.")
def top(
    context: typer.Context,
    admin: AdminUrl = None,
    pod: PodName = None,
    interval_s: Annotated[
        float, option("--interval", "SECONDS", "Seconds between refreshes, at least 0.2.", min=0.2)
    ] = 2.0,
    once: Annotated[bool, flag("--once", "Print one table and exit; the default if stdout is not a terminal.")] = False,
    text: Annotated[
        str, option("--filter", "TEXT", "Show only rows whose user, client-id or kind contains TEXT.")
    ] = "",
    sort: Annotated[RowOrder, option("--sort", "ORDER", "Order of the rows: use, throttled, rate or name.")] = "use",
    form: OutputForm = Form.TABLE,
    as_json: Annotated[bool, flag("--json", "Same as -o json: one snapshot.")] = False,
) -> None:
    """Show the counters of a running sidecar: limit, usage and throttle time."""
    from proxy.app.cli.top import look_json, watch

    admin = _admin_of(context, admin, pod)
    form = Form.JSON if as_json else form
    with errors_reported():
        if form.is_data:
            print_data(look_json(admin, text, sort), form)
        else:
            watch(admin, interval_s=interval_s, once=once, text=text, sort=sort, uncut=form is Form.WIDE)


@app.command(short_help="Show the sidecars of a namespace or gateway on one web page.")
def ui(
    namespace: Annotated[
        str | None, option("--namespace -n", "NAME", "Show the sidecars of this namespace, through kubectl.")
    ] = None,
    selector: Annotated[
        str, option("--selector -l", "LABELS", "Only pods with these labels, such as app=orders.")
    ] = "",
    admin: Annotated[
        list[str] | None, option("--admin", "URL", "Show the sidecar with this admin port; repeatable.")
    ] = None,
    port: Annotated[int, option("--port", "PORT", "Local port of the page; 0: any.", min=0, max=65_535)] = 9405,
) -> None:
    """Serve a web page on 127.0.0.1 with the throttled clients of all these sidecars. Rows link to each sidecar's own
    page. Needs --namespace or --admin."""
    from proxy.app.cli.admin_client import proxied, with_scheme
    from proxy.app.cli.ui import Place, places_of, serve

    if (namespace is None) == (admin is None):
        raise typer.BadParameter("expected --namespace NAME, or one or more --admin URL")
    if selector and namespace is None:
        raise typer.BadParameter("--selector needs --namespace")
    with errors_reported():
        if namespace is None:
            urls = [with_scheme(url).rstrip("/") for url in admin or ()]
            title = "1 sidecar" if len(urls) == 1 else f"{len(urls)} sidecars"
            serve(title, lambda: [Place(url.partition("://")[2], url) for url in urls], port)
        else:
            with proxied(namespace) as proxy:
                places_of(proxy, namespace, selector)  # what is wrong with it is said at once
                serve(f"namespace {namespace}", lambda: places_of(proxy, namespace, selector), port)


@app.command(short_help="Write a small configuration file.")
def init(
    bootstrap: Annotated[list[str], option("--bootstrap", "HOST:PORT", "A broker of the cluster; repeatable.")],
    produce: Annotated[
        str | None, option("--produce", "BYTES", "Bytes per second that each client-id may produce, such as 2M.")
    ] = None,
    fetch: Annotated[
        str | None, option("--fetch", "BYTES", "Bytes per second that each client-id may fetch, such as 4M.")
    ] = None,
    user: Annotated[str | None, option("--user", "NAME", "User name for unauthenticated connections.")] = None,
    port: Annotated[int, option("--port", "PORT", "Port for clients.", min=1, max=65_535)] = 9092,
    shadow: Annotated[bool, flag("--shadow", "Measure only, delay no client.")] = False,
    output: Annotated[Path | None, option("--output", "FILE", "A new file; default: standard output.")] = None,
) -> None:
    """Write a small configuration file with comments. An existing file is never overwritten. Without --produce and
    --fetch the limits are 2M and 4M."""
    from proxy.app.cli.init import config_text

    if produce is None and fetch is None:
        produce, fetch = "2M", "4M"
    with errors_reported():
        text = config_text(bootstrap, port=port, user=user, produce=produce, fetch=fetch, shadow=shadow)
    if output is None:
        say(text.rstrip("\n"))
        return
    try:
        with output.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        reason = "already exists" if isinstance(error, FileExistsError) else error.strerror
        fail(f"{output}: {reason}")
    say(f"{output} written; next: kquota check --config {output}")


@app.command(short_help="Print the configuration's JSON schema.")
def schema(form: Annotated[Literal["json", "yaml"], option("--output -o", "FORM", "json or yaml.")] = "json") -> None:
    """Print the JSON schema of the configuration file."""
    from config.model import json_schema

    print_data(json_schema(), Form(form))


@app.command(short_help="Show version and build.")
def version(form: OutputForm = Form.TABLE, as_json: AsJson = False) -> None:
    """Show the versions of kquota and Python, and whether the data path is compiled."""
    from proxy.app.common.version import kquota_version
    from quota import compiled

    found = {"kquota": kquota_version(), "python": platform.python_version(), "data_path": compiled.description()}
    text = "kquota {kquota}, Python {python}, data path: {data_path}".format_map(found)
    show(found, text, Form.JSON if as_json else form)


@app.command(short_help="Inject sidecars into pods (Kubernetes).")
def webhook(
    template: Annotated[Path, option("--template", "FILE", "Sidecar template, which the Helm chart renders.")],
    cert: Annotated[
        Path | None, option("--cert", "FILE", "TLS certificate (PEM). Without it the webhook makes and renews its own.")
    ] = None,
    key: Annotated[Path | None, option("--key", "FILE", "Private key of --cert (PEM).")] = None,
    authority: Annotated[Path | None, option("--ca", "FILE", "Authority of --cert (PEM), for the API server.")] = None,
    host: Annotated[str, option("--host", "ADDRESS", "Address to listen on.")] = "::",
    port: Annotated[int, option("--port", "PORT", "Port to listen on.", min=1, max=65_535)] = 8443,
    service_account: Annotated[
        Path, option("--service-account", "DIRECTORY", "Mounted service account: token and ca.crt.")
    ] = Path("/var/run/secrets/kubernetes.io/serviceaccount"),
) -> None:
    """Serve a mutating admission webhook until SIGTERM, and copy the configuration to the labelled namespaces. The Helm
    chart sets it up (docs/injection.md)."""
    if (cert is None) != (key is None):
        raise typer.BadParameter("--cert and --key: expected both or neither")
    try:
        from deploy.kubernetes.webhook import main as webhook_main
    except ModuleNotFoundError as error:
        fail(f"the webhook needs its extra packages ({error.name}): pip install 'kquota[webhook]'")

    files = None if cert is None or key is None else (cert, key, authority)
    raise typer.Exit(webhook_main(template, files, host, port, service_account))


@app.command(short_help="Watch quotas at work on a real broker.")
def demo(
    seconds: Annotated[int, option("--seconds", "SECONDS", "Duration of the demo.", min=1)] = 30,
    plain: Annotated[bool, flag("--plain", "Print lines instead of a live view.")] = False,
    usage: Annotated[Path | None, option("--usage", "DIRECTORY", "Directory for usage records.")] = None,
) -> None:
    """Start a broker, the sidecar and clients, and watch quotas at work. Needs a checkout."""
    if not (_ROOT / "tests/lab/demo").is_dir():
        fail("the demo runs in a checkout only: make demo")
    arguments = ["--seconds", str(seconds), *["--plain"] * plain, *(["--usage", str(usage)] if usage else [])]
    _become(sys.executable, "tests.lab.demo", arguments)


@app.command(
    short_help="Make reports from usage records with Spark.",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
)
def report(context: typer.Context) -> None:
    """Make a report from usage records with Spark; `kquota report --help` names the reports and their options."""
    python = os.environ.get(ANALYSIS_PYTHON_VARIABLE) or sys.executable
    try:
        _become(python, "analysis", context.args)
    except OSError as error:
        fail(f"{ANALYSIS_PYTHON_VARIABLE}: {error}", WRONG_USE)


def _become(python: str, module: str, arguments: Sequence[str]) -> NoReturn:
    """Replace this process by a module in another Python, which may find our packages by their location only (a
    checkout). Signals reach it directly. Raises OSError."""
    paths = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    os.execvpe(python, [python, "-m", module, *arguments], os.environ | {"PYTHONPATH": paths})


def main() -> None:
    """Entry point of the `kquota` script."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed: no other file or socket may get its number
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    try:
        app()
    except OSError as error:
        if error.filename is not None or error.errno != errno.ENOSPC:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is left to write
        say(f"error: cannot write the output: {error.strerror}", err=True)
        sys.exit(FAILED)


if __name__ == "__main__":
    main()
