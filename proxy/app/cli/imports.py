"""`kquota import`: quotas that are written elsewhere, as entries of a kquota file or of the chart's values."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from config.problems import ConfigError, Place
from config.visible import visible
from proxy.app.common.text import (
    WRONG_USE,
    AsJson,
    Form,
    OutputForm,
    columns,
    errors_reported,
    fail,
    json_text,
    option,
    safe,
    say,
    show,
)
from proxy.net.files import read_file

if TYPE_CHECKING:
    from config.source import Source

app = typer.Typer(
    help="Import quotas from a cluster or from Strimzi KafkaUsers, as entries of the file or of the chart's values.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_LIMITS = {
    "producerByteRate": "producer_byte_rate",
    "consumerByteRate": "consumer_byte_rate",
    "requestPercentage": "request_percentage",
    "controllerMutationRate": "controller_mutation_rate",
}
"""KafkaUser's spec.quotas, and Kafka's own names."""
_BY_CERTIFICATE = ("tls", "tls-external")


def strimzi_entries(file: str, data: bytes) -> Iterator[dict[str, Any]]:
    """Quota entries of the KafkaUser resources in a file, or in lists as kubectl prints them. Raises ConfigError for
    text that is not YAML and for quotas that are not numbers above 0."""
    from config.source import parse_documents  # not needed to show the command's help

    for source in parse_documents(file, data):
        users = list(_users(source.values))
        if users and source.problems:
            raise ConfigError(source.problems)
        for place, resource in users:
            if entry := _entry(source, place, resource):
                yield entry


def _users(document: Any) -> Iterator[tuple[Place, dict[str, Any]]]:
    items = document.get("items") if isinstance(document, dict) else None
    found = [(("items", at), one) for at, one in enumerate(items)] if isinstance(items, list) else [((), document)]
    for place, resource in found:
        if isinstance(resource, dict) and resource.get("kind") == "KafkaUser":
            yield place, resource


def _entry(source: Source, place: Place, resource: dict[str, Any]) -> dict[str, Any]:
    from config.source import number  # not needed to show the command's help

    def section(values: dict[str, Any], *path: str) -> dict[str, Any]:
        value = values.get(path[-1])
        if value is not None and not isinstance(value, dict):
            raise ConfigError([source.problem((*place, *path), "expected a mapping", value)])
        return value or {}

    spec = section(resource, "spec")
    quotas = section(spec, "spec", "quotas")
    limits: dict[str, Any] = {}
    for theirs, ours in _LIMITS.items():
        value = quotas.get(theirs)
        if value is None:
            continue
        found = number(value)
        if found is None or found <= 0:
            raise ConfigError([source.problem((*place, "spec", "quotas", theirs), "expected a number above 0", value)])
        limits[ours] = found
    if not limits:
        return {}
    name = section(resource, "metadata").get("name")
    if not isinstance(name, str):
        raise ConfigError([source.problem((*place, "metadata", "name"), "expected the user's name as text", name)])
    by_certificate = section(spec, "spec", "authentication").get("type") in _BY_CERTIFICATE
    return {"user": f"CN={name}" if by_certificate else name} | limits


def _print(entries: list[dict[str, Any]], form: Form, none: str) -> None:
    if not entries:
        fail(none)
    keys = list(dict.fromkeys(key for entry in entries for key in entry))
    rows = [["-" if key not in entry else safe(str(entry[key])) for key in keys] for entry in entries]
    show({"quotas": entries}, columns([keys, *rows]), form)


@app.command(short_help="Import a cluster's client quotas.")
def kafka(
    config: Annotated[
        Path | None, option("--config -c", "FILE", "A kquota file with `upstream`.", envvar="KQUOTA_CONFIG")
    ] = None,
    bootstrap: Annotated[
        list[str] | None, option("--bootstrap", "HOST:PORT", "A broker, without TLS and login; repeatable.")
    ] = None,
    form: OutputForm = Form.YAML,
    as_json: AsJson = False,
) -> None:
    """Print a cluster's client quotas as quota entries.

    Needs --config, a file with the cluster's address and login, or --bootstrap.
    """
    from config.load import load, load_bytes
    from proxy.app.cli.imports_cluster import entries_of_cluster  # trio and TLS: not needed by the other commands

    if config is None and not bootstrap:
        raise typer.BadParameter("expected --config FILE or --bootstrap HOST:PORT")
    with errors_reported():
        if bootstrap:
            asked = load_bytes("--bootstrap", json_text({"upstream": {"bootstrap": bootstrap}}).encode())
        else:
            assert config is not None
            asked = load(config)
        found, left = entries_of_cluster(asked)
    for reason in left:
        say(f"warning: skipped: {visible(reason)}", err=True)
    _print(found, Form.JSON if as_json else form, "the cluster has no client quotas that kquota can express")


@app.command(short_help="Import quotas of Strimzi's KafkaUser resources.")
def strimzi(
    # Hidden in the list of options, because typer writes <list[Path]> there; the usage and the text below have it.
    files: Annotated[list[Path], typer.Argument(metavar="FILE", hidden=True)],
    form: OutputForm = Form.YAML,
    as_json: AsJson = False,
) -> None:
    """Convert KafkaUser spec.quotas to quota entries. Users with a certificate are CN=NAME, all others NAME.

    Each FILE has manifests, or the output of kubectl get kafkausers -o yaml.
    """
    from config.problems import MAX_FILE_BYTES

    found: list[dict[str, Any]] = []
    for path in files:
        with errors_reported(WRONG_USE):
            try:
                data = read_file(path, MAX_FILE_BYTES)
            except OSError as error:
                raise OSError(f"{path}: {error.strerror or error}") from error
            found += strimzi_entries(str(path), data)
    _print(found, Form.JSON if as_json else form, "no KafkaUser with spec.quotas in these files")
