"""`kquota import`: quotas that are written elsewhere, as entries of a kquota file or of the chart's values."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from config.problems import ConfigError, Problem
from deploy.common.text import json_text, say
from quota.files import read_file

FAILED, WRONG_USE = 1, 2

app = typer.Typer(
    help="Take quotas over from elsewhere: entries for the file, or for the chart's values (the words are the same).",
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
    """Quota entries of the KafkaUser resources in a file, or in lists as `kubectl get kafkausers -o yaml` prints them.

    Raises ConfigError for text that is not YAML and for quotas that are not numbers above 0.
    """
    for resource in _resources(file, data):
        if not isinstance(resource, dict) or resource.get("kind") != "KafkaUser":
            continue
        name = (resource.get("metadata") or {}).get("name")
        spec = resource.get("spec") or {}
        quotas, kind = spec.get("quotas") or {}, (spec.get("authentication") or {}).get("type")
        entry: dict[str, Any] = {"user": f"CN={name}" if kind in _BY_CERTIFICATE else name}
        for theirs, ours in _LIMITS.items():
            value = quotas.get(theirs)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
                place = f"KafkaUser {name}: spec.quotas.{theirs}"
                raise ConfigError([Problem(file, place, None, None, repr(value), "expected a number above 0")])
            entry[ours] = value
        if len(entry) > 1:
            yield entry


def _resources(file: str, data: bytes) -> Iterator[Any]:
    import yaml  # not needed to show the command's help

    from config.bounds import check_text, count_values

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        text = check_text(file, data)
        counting = loader(text)
        try:
            count_values(file, counting.get_event)
        finally:
            counting.dispose()
        for document in yaml.load_all(text, Loader=loader):
            if isinstance(document, dict) and isinstance(document.get("items"), list):
                yield from document["items"]
            else:
                yield document
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError([Problem(file, "(the whole file)", None, None, None, f"expected YAML: {reason}")]) from error


def entries_text(entries: list[dict[str, Any]]) -> str:
    """The entries as in a configuration file and in the chart's values."""
    import yaml

    body = yaml.safe_dump({"quotas": entries}, sort_keys=False, allow_unicode=True, default_flow_style=None, width=1000)
    return str(body).rstrip("\n")


@app.callback()
def _group() -> None:
    pass


@app.command(short_help="Quotas that a cluster has.")
def kafka(
    config: Annotated[
        Path,
        typer.Option(
            "--config", "-c", metavar="FILE", envvar="KQUOTA_CONFIG", help="A kquota file: its upstream is asked."
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of YAML.")] = False,
) -> None:
    """Ask a cluster for its client quotas (what kafka-configs --describe shows) and print them as quota entries.

    The file says where the cluster is, and how to log in; it needs no quotas of its own.
    """
    from deploy.cli.imports_cluster import entries_of_cluster  # trio and TLS: not needed by the other commands

    try:
        found, left = entries_of_cluster(config)
    except ConfigError as error:
        for problem in error.problems:
            say(f"error: {problem}", err=True)
        raise typer.Exit(WRONG_USE) from None
    except OSError as error:
        say(f"error: {error}", err=True)
        raise typer.Exit(FAILED) from None
    for reason in left:
        say(f"warning: left out: {reason}", err=True)
    if not found:
        say("error: the cluster has no client quotas that an entry can say", err=True)
        raise typer.Exit(FAILED)
    say(json_text({"quotas": found}) if as_json else entries_text(found))


@app.command(short_help="Quotas of Strimzi's KafkaUser resources.")
def strimzi(
    # Hidden in the list of options, because typer writes <list[Path]> there; the usage and the text below have it.
    files: Annotated[list[Path], typer.Argument(metavar="FILE", hidden=True)],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of YAML.")] = False,
) -> None:
    """Turn KafkaUser spec.quotas into quota entries. Users that log in by certificate are CN=NAME, all others NAME.

    Each FILE has manifests, or what kubectl get kafkausers -o yaml prints.
    """
    from config.bounds import MAX_FILE_BYTES

    found: list[dict[str, Any]] = []
    try:
        for path in files:
            found += strimzi_entries(str(path), read_file(path, MAX_FILE_BYTES))
    except ConfigError as error:
        for problem in error.problems:
            say(f"error: {problem}", err=True)
        raise typer.Exit(WRONG_USE) from None
    except OSError as error:
        say(f"error: {error.filename or ''}: {error.strerror or error}", err=True)
        raise typer.Exit(WRONG_USE) from None
    if not found:
        say("error: no KafkaUser with spec.quotas in these files", err=True)
        raise typer.Exit(FAILED)
    say(json_text({"quotas": found}) if as_json else entries_text(found))
