"""docs/configuration.md is true: its examples load, its defaults are the defaults, no setting is missing."""

import re
from pathlib import Path

from pydantic import BaseModel

from config.load import load_bytes
from config.model import Config

TEXT = Path(__file__, "../../../docs/configuration.md").resolve().read_text()
EXAMPLES = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)


def settings(model: type[BaseModel], prefix: str = "") -> set[str]:
    found = set()
    for name, info in model.model_fields.items():
        inner = info.annotation
        written = prefix + (info.alias or name)
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            found |= settings(inner, f"{written}.")
        else:
            found.add(written)
    return found


def test_the_large_example_shows_the_defaults_of_all_settings() -> None:
    config = load_bytes("example.yaml", EXAMPLES[0].encode())
    shown = config.restart_settings()
    default = load_bytes("least.yaml", b'upstream: {bootstrap: ["kafka:9092"]}').restart_settings()
    assert {name for name in shown if shown[name] != default[name]} == {"upstream.bootstrap", "identity.static"}
    missing = {info.alias or name for name, info in Config.model_fields.items() if name not in config.model_fields_set}
    assert all(name.startswith(("quota.producer.", "quota.consumer.", "max.connections.per.ip")) for name in missing)


def test_every_setting_is_in_the_table() -> None:
    rows = [line for line in TEXT.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])}
    assert settings(Config) - named == set()


def test_live_settings_are_marked_so() -> None:
    restart = set(load_bytes("least.yaml", b'upstream: {bootstrap: ["kafka:9092"]}').restart_settings())
    for row in TEXT.splitlines():
        cells = [cell.strip() for cell in row.split("|")]
        if len(cells) == 6 and cells[1].startswith("`") and cells[3] in ("", "yes"):
            for name in re.findall(r"`([^`]+)`", cells[1]):
                parts = name.split(".")
                whole = {".".join(parts[:count]) for count in range(1, len(parts) + 1)}  # sections are compared whole
                live = not restart & whole and name != "admin"
                assert live == (cells[3] == "yes"), name
