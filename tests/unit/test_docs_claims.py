"""Sentences of the documentation that were wrong once, held to what the code and the stored figures say."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from xml.etree import ElementTree

import pytest

from config.identity import SOURCES
from config.load import load_bytes
from config.units import parse_duration_ms

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def page(name: str) -> str:
    return " ".join((DOCS / name).read_text().split())


def test_the_example_shows_the_default_sources_of_identity() -> None:
    assert f"sources: [{', '.join(SOURCES)}]" in page("configuration.md")


def test_restricted_is_not_said_of_the_container_that_sets_redirect_rules() -> None:
    """tests/system/test_chart.py::test_only_an_init_container_may_set_redirect_rules is about the container itself."""
    assert re.search(
        r'All containers but `kquota-redirect` .{0,80} satisfy the Pod Security Standard "restricted"',
        page("kubernetes.md"),
    )


def test_a_bad_file_keeps_new_pods_from_starting_and_the_page_says_so() -> None:
    """tests/broker/test_cli_run.py::test_a_bad_file_is_exit_2_with_the_problems is about the exit."""
    assert "**new pods do not start**" in page("kubernetes.md")
    assert "A bad file changes nothing" not in page("kubernetes.md")


def test_memory_figures_are_the_measured_ones() -> None:
    measured = re.search(
        r"\*\*Memory\*\* is (\d+) MB without connections .*? and ([\d.]+) kB per", page("benchmarks.md")
    )
    assert measured is not None
    told = re.search(r"Memory: (\d+) MB without connections, (\d+) kB for each", page("operations.md"))
    assert told is not None
    assert (int(told[1]), int(told[2])) == (int(measured[1]), round(float(measured[2])))


def test_defaults_of_drain_and_mute_are_those_of_the_program() -> None:
    default = load_bytes("least.yaml", b'upstream: {bootstrap: ["kafka:9092"]}')
    rows = dict(re.findall(r"\| `(drain_timeout_s|max_mute)` \| `(\w+)` \|", page("configuration.md")))
    assert parse_duration_ms(rows["drain_timeout_s"], bare_unit="s") == default.drain_timeout_s  # both kept in ms
    assert parse_duration_ms(rows["max_mute"], bare_unit=None) == default.max_mute


def test_no_page_wants_the_drain_to_be_longer_than_mutes() -> None:
    """Throttled connections end at once: their answers have been sent."""
    for path in [ROOT / "README.md", *DOCS.glob("*.md")]:
        text = " ".join(path.read_text().split())
        assert not re.search(r"drain_timeout_s`? (has to|must) be longer", text), path


def test_the_picture_of_the_architecture_is_the_one_that_is_drawn() -> None:
    drawn = runpy.run_path(str(DOCS / "_site" / "draw_architecture.py"))["picture"]()
    assert (DOCS / "images" / "architecture.svg").read_text() == drawn


@pytest.mark.parametrize("name", ["architecture.svg", "demo.svg"])
def test_pictures_are_well_formed_and_fetch_nothing(name: str) -> None:
    """A picture that is not XML is an empty place; one that fetches fonts tells others who reads this."""
    text = (DOCS / "images" / name).read_text()
    root = ElementTree.fromstring(text)
    assert root.get("aria-label")
    assert re.findall(r"https?://(?!www\.w3\.org/)", text) == []
    assert "@font-face" not in text


def test_the_recording_is_of_a_run_that_was_held_to_its_limits() -> None:
    text = (DOCS / "images" / "demo.svg").read_text().replace("&#160;", " ")
    assert "Every limit was kept within 10% from second " in text
    assert text.count('class="frame"') >= 10
