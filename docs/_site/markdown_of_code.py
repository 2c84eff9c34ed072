"""Reference pages, made of what the program knows: its models, its commands, its metrics and the chart's values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
import kafka_apis
import trio
import typer
import yaml
from prometheus_client.parser import text_string_to_metric_families

from config.model import LIVE_SETTINGS, json_schema
from proxy.app.cli.main import app
from tests.lab.chart import values_schema
from tests.support.exposition import everything

_WIDE: Final = ("---", "hide: [toc]", "---", "")
"""Before a page whose table needs all the room there is."""
VALUES: Final = Path(__file__).resolve().parents[2] / "helm" / "kquota" / "values.yaml"


def pages() -> dict[str, str]:
    """The pages by their place on the site."""
    return {
        "reference/configuration.md": configuration(),
        "reference/cli.md": command_line(),
        "reference/metrics.md": metrics(),
        "reference/chart.md": chart(),
        "reference/kafka-apis.md": kafka_apis.page(),
    }


def configuration() -> str:
    """Every setting of the configuration file."""
    schema = json_schema()
    live = {".".join(path) for path in LIVE_SETTINGS}
    lines = [
        *_WIDE,
        "# All settings",
        "",
        "Made from the configuration model at each build; [configuration](../configuration.md) explains them, and "
        "`kquota schema` prints the same as JSON schema. What is *live* is taken from the changed file without "
        "a restart.",
        "",
        "| setting | type | default | live | meaning |",
        "|---|---|---|---|---|",
    ]
    for name, setting in _settings(schema, schema, ""):
        is_live = any(name == one or name.startswith((f"{one}.", f"{one}[")) for one in live)
        default = _code(json.dumps(setting["default"], ensure_ascii=False)) if "default" in setting else ""
        cells = [_code(name), _type(schema, setting), default, "yes" if is_live else "", setting.get("description", "")]
        lines.append(_row(cells))
    return "\n".join(lines) + "\n"


def _settings(schema: dict[str, Any], model: dict[str, Any], prefix: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, setting in model.get("properties", {}).items():
        whole = f"{prefix}{name}"
        yield whole, setting
        for inner, mark in _models_in(schema, setting):
            yield from _settings(schema, inner, f"{whole}{mark}.")


def _models_in(schema: dict[str, Any], setting: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
    """The mappings that a setting may hold; "[]" marks those in a list."""
    if "$ref" in setting:
        return [(schema["$defs"][setting["$ref"].rpartition("/")[2]], "")]
    found = [pair for one in setting.get("anyOf", []) for pair in _models_in(schema, one)]
    if "items" in setting:
        found += [(model, f"[]{mark}") for model, mark in _models_in(schema, setting["items"])]
    return found


def _type(schema: dict[str, Any], setting: dict[str, Any]) -> str:
    if "$ref" in setting:
        return "mapping"
    if "enum" in setting:
        return " or ".join(_code(str(word)) for word in setting["enum"])
    if "anyOf" in setting:
        kinds = list(dict.fromkeys(_type(schema, one) for one in setting["anyOf"]))
        return "size" if kinds[:2] == ["whole number", "text"] and len(kinds) == 2 else " or ".join(kinds)
    words = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true or false"}
    words |= {"array": "list", "object": "mapping", "null": "null"}
    kind = words.get(setting.get("type", ""), setting.get("type", "") or "any")
    least, most = setting.get("minimum"), setting.get("maximum")
    if kind == "whole number" and least is not None and most is not None and most < 2**31:
        kind += f" from {least} to {most}"
    return str(kind)


def command_line() -> str:
    """Every command with its options."""
    root = typer.main.get_command(app)
    lines = [
        "# All options",
        "",
        "Made from the program at each build; [command line](../cli.md) explains the commands with examples.",
    ]
    for path, command in commands(root, ("kquota",)):
        lines += ["", f"## {' '.join(path)}", "", (command.help or command.short_help or "").strip(), ""]
        options = [one for one in command.params if not getattr(one, "hidden", False)]
        if options:
            lines += ["| option | environment | default | meaning |", "|---|---|---|---|"]
        for one in options:
            names = ", ".join(_code(name) for name in one.opts) or _code(str(one.name).upper())
            placeholder = getattr(one, "metavar", None)
            if placeholder and not getattr(one, "is_flag", False):
                names += f" {placeholder}"
            default = "required" if one.required else _default(one)
            cells = [names, _code(str(one.envvar)) if one.envvar else "", default, getattr(one, "help", None) or ""]
            lines.append(_row(cells))
    return "\n".join(lines) + "\n"


def commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """A command and all below it, by their names."""
    yield path, command
    if hasattr(command, "commands"):
        for name, inner in command.commands.items():
            yield from commands(inner, (*path, name))


def _default(option: Any) -> str:
    value = option.default
    if value is None or value == "" or value is False or callable(value) or type(value).__name__ == "Sentinel":
        return ""
    if isinstance(value, list | tuple):
        return ", ".join(_code(str(one)) for one in value)
    return _code(str(getattr(value, "value", value)))


def metrics() -> str:
    """Every metric, from an exposition."""
    lines = [
        *_WIDE,
        "# All metrics",
        "",
        "Made from the exposition at each build; [metrics](../metrics.md) explains bounds, labels and queries.",
        "",
        "| metric | type | labels | meaning |",
        "|---|---|---|---|",
    ]
    for family in text_string_to_metric_families(trio.run(everything).decode()):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = sorted(set().union(*(sample.labels for sample in family.samples)) - {"le"})
        lines.append(_row([_code(name), family.type, ", ".join(labels), family.documentation]))
    return "\n".join(lines) + "\n"


def chart() -> str:
    """Every value of the chart, with its default and what values.yaml says of it."""
    text = VALUES.read_text(encoding="utf-8")
    described = values_schema()["properties"]
    lines = [
        *_WIDE,
        "# Chart values",
        "",
        "Made from `helm/kquota/values.yaml` and its schema at each build; [Kubernetes](../kubernetes.md) shows how "
        "they are used. `config` and `quotas` are the [configuration file](configuration.md). Others are "
        "refused.",
        "",
        "| value | default | meaning |",
        "|---|---|---|",
    ]
    root = yaml.compose(text)
    assert isinstance(root, yaml.MappingNode)
    seen = set()
    for place, node, told in _values(root, text.splitlines(), ()):
        seen.add(place[0])
        default = "" if isinstance(node, yaml.MappingNode) and node.value else _code(_plain(node))
        of_schema = described.get(place[0], {}).get("description", "") if len(place) == 1 else ""
        if not (told or of_schema):
            continue  # a mapping whose values say more, or a part of a default
        lines.append(_row([_code(".".join(place)), default, told or of_schema]))
    for name in sorted(described.keys() - seen):
        lines.append(_row([_code(name), "", described[name].get("description", "")]))
    return "\n".join(lines) + "\n"


def _values(node: yaml.MappingNode, lines: list[str], place: tuple[str, ...]) -> Iterator[tuple[Any, Any, str]]:
    for key, value in node.value:
        here = (*place, str(key.value))
        yield here, value, _comment(lines, key.start_mark.line)
        if isinstance(value, yaml.MappingNode) and value.value and len(here) < 3:
            yield from _values(value, lines, here)


def _comment(lines: list[str], number: int) -> str:
    """The comment above a line, without examples that are commented out, and the one behind it."""
    above: list[str] = []
    while number and lines[number - 1 - len(above)].lstrip().startswith("# ") and len(above) < number:
        above.append(lines[number - 1 - len(above)].strip().removeprefix("# ").removeprefix("-- "))
    if number == len(above) or any(line.startswith("Values of the kquota chart") for line in above):
        above = []
    above = [line for line in above if not line.startswith(" ") and not re.fullmatch(r"[a-zA-Z_]+:", line)]
    line = lines[number]
    behind = line.partition(" # ")[2].strip()
    return " ".join([*reversed(above), *([behind] if behind else [])])


def _plain(node: yaml.Node) -> str:
    return json.dumps(yaml.safe_load(yaml.serialize(node)), ensure_ascii=False)


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(" ".join(_safe(cell).split()) for cell in cells) + " |"


def _safe(text: str) -> str:
    """Text that neither ends a cell nor is HTML: <default> is no element."""
    parts = text.split("`")
    for index in range(0, len(parts), 2):
        parts[index] = parts[index].replace("<", "&lt;").replace("|", "\\|").replace("*", "\\*")
    return "`".join(parts)


def parser_of(arguments: list[str]) -> click.Context:
    """What a command line means to the program, without running it. Raises click's errors of use."""
    return typer.main.get_command(app).make_context("kquota", arguments)
