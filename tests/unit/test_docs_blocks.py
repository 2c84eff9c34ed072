"""Blocks of the documentation: files load, values fit the chart, commands parse and succeed on their page's files."""

import json
import re
import shlex
import textwrap
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import pytest
import typer
import yaml
from typer import Exit as ClickExit
from typer.testing import CliRunner

from config.load import load_bytes, warnings_of
from config.model import Config
from config.overlay import parse_overlay
from proxy.app.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]
VALUES_SCHEMA = json.loads((ROOT / "helm/kquota/values.schema.json").read_text())
SETTINGS = {info.alias or name for name, info in Config.model_fields.items()}
OF_OTHERS = {
    "analysis.md"  # Spark's and Prometheus' own files; its commands are those of the reports
}
"""Pages whose YAML is not kquota's."""


class Block(NamedTuple):
    page: str
    line: int
    language: str
    text: str


def blocks(path: Path) -> Iterator[Block]:
    text = path.read_text()
    for match in re.finditer(r"^( *)```(\w*)\n(.*?)^\1```", text, re.MULTILINE | re.DOTALL):
        line = text.count("\n", 0, match.start()) + 1
        yield Block(path.name, line, match[2], textwrap.dedent(match[3]))


BLOCKS = [block for path in PAGES for block in blocks(path)]


def named(found: list[Block]) -> Any:
    return pytest.mark.parametrize("block", found, ids=[f"{block.page}:{block.line}" for block in found])


YAML = [block for block in BLOCKS if block.language == "yaml" and block.page not in OF_OTHERS]
SHELL = [block for block in BLOCKS if block.language in ("sh", "console", "bash", "")]


@named([block for block in YAML if "{{" not in block.text])
def test_yaml_blocks_load(block: Block) -> None:
    """A manifest, a configuration, or values of the chart."""
    name, text = f"{block.page}:{block.line}", block.text
    if "apiVersion:" in text:
        assert all("apiVersion" in document for document in yaml.safe_load_all(text))
        return
    values = yaml.safe_load(text)
    if values.keys() <= SETTINGS:
        if ": null" in text and values.keys() == {"quotas"}:  # only an overlay has limits that were removed
            assert parse_overlay(name, text.encode())
            return
        warnings = {warning.expected for warning in warnings_of(load_bytes(name, text.encode(), on_paper=True))}
        assert warnings <= {"no quotas at all: nothing will be throttled"}  # the page is about something else
        return
    values = values.get("kquota", values)  # of a chart that has kquota as a dependency
    assert values.keys() <= VALUES_SCHEMA["properties"].keys()
    config = {"admin": {"port": 9404}} | values.get("config", {})  # values.yaml sets the port
    jsonschema.validate(values | {"config": config}, VALUES_SCHEMA)
    if "upstream" in config or config.get("mode") == "transparent":
        quotas = {"quotas": values["quotas"]} if "quotas" in values else {}
        load_bytes(name, yaml.safe_dump(config | quotas, sort_keys=False).encode())


def commands(block: Block) -> Iterator[list[str]]:
    """The command lines of kquota in a block, without what a shell does around them."""
    for line in block.text.replace("\\\n", " ").splitlines():
        found = re.search(r"(?:^|\| |&& |/bin/)kquota (-*[a-z][^:]*(?: .*)?)$", line.removeprefix("$ "))
        if found is None or line.lstrip().startswith("#"):
            continue
        words = shlex.split(found[1], comments=True)
        yield list(takewhile(lambda word: word not in ("<", ">", "|", "&&", "&", ";"), words))


def parse(words: list[str]) -> None:
    command: Any = typer.main.get_command(app)
    context = command.make_context("kquota", list(words))
    while hasattr(command, "commands"):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, rest, parent=context)


WITH_COMMANDS = [block for block in SHELL if list(commands(block))]


@named(WITH_COMMANDS)
def test_commands_are_commands(block: Block) -> None:
    for words in commands(block):
        code = 0
        try:
            parse(words)
        except ClickExit as ended:  # --version and --help
            code = ended.exit_code
        assert code == 0, words


def files_of(page: str) -> dict[str, str]:
    """Files that a page shows, by the name in their first line (`# NAME`)."""
    shown = [(re.match(r"# ([\w.-]+\.yaml)\n", block.text), block.text) for block in YAML if block.page == page]
    return {found[1]: text for found, text in shown if found}


RUNNABLE = [
    pytest.param(block.page, words, id=f"{block.page}-{'_'.join(words)}")
    for block in WITH_COMMANDS
    for words in commands(block)
    if words[0] in ("check", "explain") and "--config" in words
    if words[words.index("--config") + 1] in files_of(block.page)
]


@pytest.mark.parametrize(("page", "words"), RUNNABLE)
def test_commands_of_pages_work(page: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in files_of(page).items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "warning:" not in done.output


SESSIONS = re.findall(
    r"```\n\$ cat \w+\.yaml\n(.*?)\$ cat \w+\.jsonl\n(.*?)\$ kquota (simulate[^\n]*) --config [^\n]*\n(.*?)```",
    (ROOT / "docs/cli.md").read_text(),
    re.DOTALL,
)


@pytest.mark.parametrize(("quotas", "events", "command", "results"), SESSIONS)
def test_simulate_examples_match_output(tmp_path: Path, quotas: str, events: str, command: str, results: str) -> None:
    path = tmp_path / "quotas.yaml"
    path.write_text(quotas)
    done = CliRunner().invoke(app, [*command.split(), "--config", str(path)], input=events)
    assert (done.exit_code, done.stdout) == (0, results)
