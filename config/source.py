"""YAML text to plain values, and the position of each value in the file.

PyYAML's own loader forgets positions and silently lets the last of two equal keys win; both would hide mistakes in a
file of quotas. So the values are built here, from the parser's events. Positions are looked up among its nodes when
there is a problem to report: nodes take three times as long, and libyaml holds the GIL while it makes them.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import yaml
from yaml.composer import ComposerError
from yaml.events import AliasEvent, MappingEndEvent, MappingStartEvent, ScalarEvent, SequenceEndEvent, StreamEndEvent

from config.problems import (
    MAX_ALIASED_VALUES,
    MAX_DEPTH,
    MAX_DIRECTIVES,
    MAX_FILE_BYTES,
    MAX_PROBLEMS,
    MAX_VALUES,
    MISSING,
    ConfigError,
    Place,
    Problem,
    place_text,
    refused,
    value_text,
)

MAX_NUMBER_CHARS: Final = 1000
"""Length of a number: converting it takes time by the square of its length."""
PLAIN: Final = "unquoted"
"""Tag of a scalar without quotes and without a tag of its own."""
TEXT: Final = "tag:yaml.org,2002:str"
UNTAGGED: Final = frozenset({PLAIN, TEXT, "tag:yaml.org,2002:seq", "tag:yaml.org,2002:map"})
"""Tags that say what is written anyhow. All others are refused."""
MERGE_KEY: Final = "<<"

_WORDS: Final = (
    dict.fromkeys(("", "null", "Null", "NULL"))
    | dict.fromkeys(("true", "True", "TRUE"), True)
    | dict.fromkeys(("false", "False", "FALSE"), False)
)
_WHOLE: Final = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FRACTION: Final = re.compile(r"[-+]?((0|[1-9][0-9]*)\.[0-9]*|\.[0-9]+)([eE][-+][0-9]+)?")
NOT_ALWAYS_TEXT: Final = frozenset({"", *"nNtTfF~+-.0123456789"})
"""The first characters of all unquoted text that :func:`unquoted` has to look at."""

_Base: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # libyaml when the wheel has it: about ten times faster
_BaseDumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class Loader(_Base):  # type: ignore[misc]
    """PyYAML's loader, for its events and nodes: which scalars are unquoted, and nothing about their meaning."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        """The tag of a node without one of its own."""
        if kind is yaml.ScalarNode:
            return PLAIN if implicit[0] else TEXT
        return super().resolve(kind, value, implicit)


def unquoted(text: str) -> Any:
    """The value of unquoted text. Raises ValueError for text that has to be quoted, or written in another way."""
    if text in _WORDS:
        return _WORDS[text]
    if text == "~":
        raise ValueError("YAML reads ~ as null: write null")
    whole = _WHOLE.fullmatch(text)
    if whole is None and _FRACTION.fullmatch(text) is None:
        return text
    if len(text) > MAX_NUMBER_CHARS:
        raise ValueError(f"it has {len(text)} characters, at most {MAX_NUMBER_CHARS} are accepted")
    return int(text) if whole is not None else float(text)


def number(value: Any) -> int | float | None:
    """The value if it is a finite number that a float can hold; None for everything else, true and false included."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:  # a whole number of more than 308 digits
        return None


def is_merge(key: yaml.Node) -> bool:
    """Whether a key is YAML's ``<<``, which merges the mappings that are its value."""
    return bool(key.value == MERGE_KEY and key.tag == PLAIN)


class _Dumper(_BaseDumper):  # type: ignore[misc]
    """PyYAML's dumper; it quotes text that :func:`unquoted` would read as something else, such as -.5."""


def _represent_text(dumper: Any, text: str) -> Any:
    try:
        plain = unquoted(text) == text
    except ValueError:
        plain = False
    # Invisible characters have codes in double quotes only, also those that `visible` writes for a terminal.
    quoted = "'" if text.isprintable() else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain and quoted == "'" else quoted)


_Dumper.add_representer(str, _represent_text)


def dump(values: Any) -> str:
    """Values as YAML text, a list's entries on one line each."""
    return str(
        yaml.dump(values, Dumper=_Dumper, allow_unicode=True, sort_keys=False, default_flow_style=None, width=1_000_000)
    )


@dataclass(slots=True)
class Source:
    """A parsed file: its values, and the position of each, which is computed on first use."""

    file: str
    values: Any = None
    text: str | None = None
    """What was parsed; None for values that come from no file."""
    document: int = 0
    problems: list[Problem] = field(default_factory=list)
    """Problems of the values themselves, such as a duplicate key; its first value counts meanwhile, so that all other
    problems can be reported with it."""
    more_problems: int = 0
    _root: yaml.Node | None = None

    @property
    def root(self) -> yaml.Node | None:
        """The document's YAML nodes, with their positions."""
        if self._root is None and self.text is not None:
            self._root = next(islice(yaml.compose_all(self.text, Loader), self.document, None), None)
        return self._root

    def has(self, place: Place) -> bool:
        """Whether the file itself has a value at a place."""
        value = self.values
        for part in self._as_written(place):
            try:
                value = value[part]
            except (LookupError, TypeError):
                return False
        return True

    def problem(self, place: Place, expected: str, value: Any = MISSING, *, at_key: bool = False) -> Problem:
        """A problem at a place; for a place that does not exist (a missing key) the position of its parent."""
        place = self._as_written(place)
        key, node = None, self.root
        for part in place:
            key, inner = _step(node, part, 0)
            if inner is None:
                break
            node = inner
        return self.problem_at(key if at_key and key is not None else node, place, expected, value)

    def problem_at(self, found: Any, place: Place, expected: str, value: Any = MISSING) -> Problem:
        """A problem at the position of an event or a node; None: at no position."""
        mark = None if found is None else found.start_mark
        line, column = (None, None) if mark is None else (mark.line + 1, mark.column + 1)
        shown = None if value is MISSING else value_text(value)
        return Problem(self.file, place_text(place), line, column, shown, expected)

    def _as_written(self, place: Place) -> Place:
        """`quotas` may be the list of entries or a mapping that contains it: both ways of naming an entry find it."""
        if place[:1] != ("quotas",) or not isinstance(self.values, dict):
            return place
        if isinstance(self.values.get("quotas"), list):
            return ("quotas", *place[2:]) if place[1:2] == ("entries",) else place
        return ("quotas", "entries", *place[1:]) if isinstance(next(iter(place[1:]), None), int) else place


def parse(file: str, data: bytes) -> Source:
    """Parse YAML. Raises ConfigError for what is no YAML, or too large; `problems` has those of single values."""
    found = parse_documents(file, data, most=1)
    return found[0] if found else Source(file)


def parse_documents(file: str, data: bytes, most: int = MAX_VALUES) -> list[Source]:
    """Each document of a file of several, with its values and their problems. Raises ConfigError as :func:`parse` does,
    also for more than `most` documents."""
    if len(data) > MAX_FILE_BYTES:
        raise refused(file, f"expected a file of at most {MAX_FILE_BYTES} bytes, it has {len(data)}")
    try:
        text = data.decode("utf-8-sig")
        directives = text.count("\n%") + text.startswith("%")
        if directives > MAX_DIRECTIVES:
            expected = f"expected at most {MAX_DIRECTIVES} directives (lines that begin with %), there are {directives}"
            raise refused(file, expected)
        loader = Loader(text)
        try:
            return list(_documents(file, text, loader, most))
        finally:
            loader.dispose()
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise _no_yaml(file, data, error) from error


def _no_yaml(file: str, data: bytes, error: UnicodeDecodeError | yaml.YAMLError) -> ConfigError:
    mark = None
    if isinstance(error, UnicodeDecodeError):
        expected = f"expected UTF-8 text: {error.reason} at byte {error.start}"
    elif not isinstance(error, yaml.MarkedYAMLError):
        expected = f"expected YAML: {' '.join(str(error).split())}"
    else:
        expected = f"expected YAML: {_reason(error, data.decode('utf-8-sig'))}"
        mark = error.problem_mark or error.context_mark
    return refused(file, expected, mark)


_PLAIN_WORDS = (
    ("mapping values are not allowed", "a colon where none is expected: wrong indentation, or text that needs quotes"),
    ("expected ',' or ']'", "a list in [ ] lacks its closing bracket or a comma"),
    ("expected ',' or '}'", "a mapping in { } lacks its closing brace or a comma"),
    ("did not find expected key", "wrong indentation: this line does not belong to any block above it"),
    ("did not find expected node content", "a list in [ ] or a mapping in { } is not closed, or has an empty item"),
    ("could not find expected ':'", "a key is not followed by a colon and a space"),
)
"""libyaml's or PyYAML's message, and its usual cause."""


def _reason(error: yaml.MarkedYAMLError, text: str) -> str:
    """What is wrong, in plain words if there are any."""
    reason = ", ".join(part for part in (error.problem, error.context) if part)
    mark = error.problem_mark or error.context_mark
    lines = text.splitlines()
    line = lines[mark.line] if mark is not None and mark.line < len(lines) else ""
    if "cannot start any token" in reason and "\t" in line[: len(line) - len(line.lstrip())]:
        return "this line is indented with a tab, and YAML allows only spaces"
    found = next((plain for theirs, plain in _PLAIN_WORDS if theirs in reason), None)
    return reason if found is None else f"{found} ({reason})"


def _documents(file: str, text: str, loader: Loader, most: int) -> Iterator[Source]:
    loader.get_event()  # the stream's start
    reader = _Reader(loader)
    number = 0
    while type(start := loader.get_event()) is not StreamEndEvent:
        if number == most:
            raise ComposerError(None, None, "one document, found another here", start.start_mark)
        source = reader.source = Source(file, text=text, document=number)
        source.values = reader.value(loader.get_event(), 0)
        loader.get_event()  # the document's end
        reader.anchors.clear()
        yield source
        number += 1


@dataclass(slots=True)
class _Anchored:
    """A value that aliases may repeat."""

    value: Any
    text: str | None = None
    """That of a scalar, as written."""
    size: tuple[int, int] | None = None
    """The number of its values, and how deep they nest; None: it has not ended yet, so an alias would repeat itself."""


class _Reader:
    """Builds values from events. Called for each of many thousand entries, hence its loops."""

    def __init__(self, loader: Loader) -> None:
        self._next = loader.get_event
        self.source = Source("")
        self.anchors: dict[str, _Anchored] = {}
        self._path: list[str | int] = []
        """The place of the list or mapping that is being read."""
        self._count = self._aliased = self._deepest = 0
        self._known: dict[str, Any] = {}
        """Values of unquoted text already converted; none of them is mutable."""

    def value(self, event: Any, depth: int, *key: str) -> Any:
        """The value that begins with an event; `key`: it is this key of a mapping."""
        kind = type(event)
        if kind is AliasEvent:
            self._add(1, event)
            return self._repeated(event, depth).value
        if event.anchor is None:
            return self._scalar(event, *key) if kind is ScalarEvent else self._collection(event, depth)
        if event.anchor in self.anchors:
            raise ComposerError(None, None, f"found duplicate anchor {event.anchor!r}", event.start_mark)
        found = self.anchors[event.anchor] = _Anchored(None, event.value if kind is ScalarEvent else None)
        before, outer, self._deepest = self._count + self._aliased, self._deepest, depth
        found.value = self._scalar(event, *key) if kind is ScalarEvent else self._collection(event, depth)
        found.size = self._count + self._aliased - before, self._deepest - depth
        self._deepest = max(outer, self._deepest)
        return found.value

    def _add(self, values: int, event: Any) -> None:
        self._count += values
        if self._count > MAX_VALUES:
            text = f"expected at most {MAX_VALUES} values in the file (keys, values, lists and mappings)"
            raise refused(self.source.file, text, event.start_mark)

    def _repeated(self, event: Any, depth: int) -> _Anchored:
        """What an alias stands for: a copy, so that aliases can make a short file huge ("billion laughs")."""
        found = self.anchors.get(event.anchor)
        if found is None:
            raise ComposerError(None, None, "found undefined alias", event.start_mark)
        count, levels = found.size or (MAX_ALIASED_VALUES + 1, 0)
        self._aliased += count
        if self._aliased > MAX_ALIASED_VALUES or depth + levels > MAX_DEPTH:
            raise yaml.YAMLError("the file nests too deeply or expands to too many values (aliases?)")
        self._deepest = max(self._deepest, depth + levels)
        return _Anchored(copy.deepcopy(found.value), found.text, found.size)

    def _collection(self, event: Any, depth: int) -> Any:
        if depth >= MAX_DEPTH:
            raise refused(self.source.file, f"expected at most {MAX_DEPTH} levels of nesting", event.start_mark)
        self._add(1, event)
        self._deepest = max(self._deepest, depth + 1)
        self._check_tag(event, ())
        if type(event) is MappingStartEvent:
            return self._mapping(depth + 1)
        result: list[Any] = []
        self._path.append(0)
        while type(event := self._next()) is not SequenceEndEvent:
            self._path[-1] = len(result)
            result.append(self.value(event, depth + 1))
        self._path.pop()
        return result

    def _mapping(self, depth: int) -> dict[str, Any]:
        own: dict[str, Any] = {}
        keys: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        next_event = self._next
        while type(event := next_event()) is not MappingEndEvent:
            plain = type(event) is ScalarEvent and event.anchor is None and event.tag is None
            key = event.value if plain else self._odd_key(event, depth)
            self._count += plain  # what is too much is noticed at the value
            value_event = next_event()
            if key is None or key in keys:
                if key is not None:
                    text = f"expected each key once; it is already at line {keys[key].start_mark.line + 1}"
                    self._note(event, (key,), text)
                self.value(value_event, depth)
            elif key == MERGE_KEY and plain and event.implicit[0]:
                self._merge(merged, value_event, self.value(value_event, depth))
            else:
                keys[key] = event
                if type(value_event) is not ScalarEvent or value_event.anchor is not None:
                    self._path.append(key)
                    own[key] = self.value(value_event, depth)
                    self._path.pop()
                elif value_event.tag is None and (text := value_event.value)[:1] not in NOT_ALWAYS_TEXT:
                    self._add(1, value_event)
                    own[key] = text
                else:
                    own[key] = self._scalar(value_event, key)
        return merged | own if merged else own

    def _odd_key(self, event: Any, depth: int) -> str | None:
        """A key with an anchor or a tag, or an alias; None, and a problem, for one that is no name."""
        if type(event) is AliasEvent:
            self._add(1, event)
            key = self._repeated(event, depth).text
        else:
            key = event.value if type(event) is ScalarEvent else None
            self.value(event, depth, *([] if key is None else [key]))
        if key is None:
            self._note(event, (), "expected text as keys")
        return key

    def _merge(self, into: dict[str, Any], event: Any, value: Any) -> None:
        """YAML's ``<<: *anchor``: the anchor's values that the mapping does not set itself."""
        for part in value if isinstance(value, list) else [value]:
            if not isinstance(part, dict):
                self._note(event, (), "expected << to name a mapping")
                continue
            for key, inner in part.items():
                into.setdefault(key, inner)

    def _scalar(self, event: Any, *key: str) -> Any:
        """The value of a scalar: for unquoted text, a number, a date and so on if YAML sees one."""
        self._add(1, event)
        text: str = event.value
        if event.tag is not None:
            self._check_tag(event, key)
            if event.tag != PLAIN:
                return text
        elif not event.implicit[0] or text[:1] not in NOT_ALWAYS_TEXT:
            return text
        value = self._known.get(text, MISSING)
        if value is MISSING:
            try:
                value = self._known[text] = unquoted(text)
            except ValueError as error:
                self._note(event, key, f"expected a value, or quotes around it: {error}", text)
                return None
        return value

    def _check_tag(self, event: Any, key: Place) -> None:
        if event.tag is not None and event.tag not in UNTAGGED:
            tag = event.tag.replace("tag:yaml.org,2002:", "!!")
            self._note(event, key, f"expected a value without the tag {tag}; quote it if it is text")

    def _note(self, event: Any, key: Place, expected: str, value: Any = MISSING) -> None:
        source = self.source
        if len(source.problems) < MAX_PROBLEMS:
            source.problems.append(source.problem_at(event, (*self._path, *key), expected, value))
        else:
            source.more_problems += 1


def _step(node: yaml.Node | None, part: str | int, depth: int) -> tuple[yaml.Node | None, yaml.Node | None]:
    """The nodes of the key (None for items of lists) and of the value; (None, None) if there is none."""
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int):
        return (None, node.value[part]) if part < len(node.value) else (None, None)
    if not isinstance(node, yaml.MappingNode) or depth > MAX_DEPTH:
        return None, None
    for key, value in node.value:
        if isinstance(key, yaml.ScalarNode) and key.value == part and not is_merge(key):
            return key, value
    for key, value in node.value:
        if is_merge(key):
            for inner in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                found = _step(inner, part, depth + 1)
                if found[1] is not None:
                    return found
    return None, None
