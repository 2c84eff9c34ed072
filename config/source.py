"""YAML text to plain values, remembering the position of each value in the file.

PyYAML's own loader forgets positions and silently lets the last of two equal keys win; both would hide mistakes in a
file of quotas. So the file is composed into nodes, and the values are built here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml
from yaml.events import (
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
)

from config.bounds import (
    MAX_ALIASED_VALUES,
    MAX_DEPTH,
    MAX_PROBLEMS,
    MAX_VALUES,
    TooMuchError,
    check_text,
    count_values,
)
from config.problems import MISSING, ConfigError, Missing, Place, Problem, place_text, value_text
from config.scalars import MERGE_KEY, NOT_ALWAYS_TEXT, PLAIN, TEXT, UNTAGGED, Loader, is_merge, unquoted

Position = tuple[int, int]
"""Line and column, both 1-based, as editors count."""


@dataclass(slots=True)
class Source:
    """A parsed file: its values, and the position of each, which is computed on first use."""

    file: str
    values: Any = None
    text: str | None = None
    """What was parsed; None for values that come from no file."""
    _root: yaml.Node | None = None
    problems: list[Problem] = field(default_factory=list)
    """Problems of the values themselves, such as a duplicate key; its first value counts meanwhile, so that all other
    problems can be reported with it."""
    more_problems: int = 0

    @property
    def root(self) -> yaml.Node | None:
        """The YAML nodes of the file, with their positions. Ten thousand entries take a while, so a file without
        problems is never composed."""
        if self._root is None and self.text is not None:
            self._root = _compose(self.text)
        return self._root

    def has(self, place: Place) -> bool:
        """Whether the file itself has a value at a place."""
        if self._root is not None:
            return _find(self._root, self._as_written(place))[1] is not None
        value = self.values
        for part in self._as_written(place):
            found = dict(enumerate(value)) if isinstance(value, list) else value
            if not isinstance(found, dict) or part not in found:
                return False
            value = found[part]
        return True

    def problem(self, place: Place, expected: str, value: Any = MISSING, *, at_key: bool = False) -> Problem:
        """A problem at a place; for a place that does not exist (a missing key) the position of its parent."""
        place = self._as_written(place)
        key, node = _find(self.root, place)
        outer = place
        while node is None and outer:
            outer = outer[:-1]
            key, node = None, _find(self.root, outer)[1]
        found = key if at_key and key is not None else node
        line, column = (None, None) if found is None else _position(found)
        shown = None if isinstance(value, Missing) else value_text(value)
        return Problem(self.file, place_text(place), line, column, shown, expected)

    def _as_written(self, place: Place) -> Place:
        """`quotas` may be the list of entries or a mapping that contains it: both ways of naming an entry find it."""
        if place[:1] != ("quotas",) or not isinstance(self.values, dict):
            return place
        if isinstance(self.values.get("quotas"), list):
            return ("quotas", *place[2:]) if place[1:2] == ("entries",) else place
        return ("quotas", "entries", *place[1:]) if isinstance(next(iter(place[1:]), None), int) else place


def parse(file: str, data: bytes) -> Source:
    """Parse YAML.

    Raises ConfigError for text that is not YAML and for excessive sizes. The problems of single values, duplicate keys
    among them, are in `problems`.
    """
    source = Source(file)
    try:
        text = check_text(file, data)
        try:
            source.values = plain_values(text)
        except (_NotPlainError, TooMuchError, yaml.YAMLError, ValueError):
            return next(_from_nodes(file, text, _only_node))
        source.text = text
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise _no_yaml(file, data, error) from error
    return source


def parse_documents(file: str, data: bytes) -> list[Source]:
    """Each document of a file of several, such as Kubernetes manifests, with its values and their problems.

    Raises ConfigError as :func:`parse` does.
    """
    try:
        return list(_from_nodes(file, check_text(file, data), _each_node))
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise _no_yaml(file, data, error) from error


def _no_yaml(file: str, data: bytes, error: UnicodeDecodeError | yaml.YAMLError) -> ConfigError:
    line = column = None
    if isinstance(error, UnicodeDecodeError):
        said = f"expected UTF-8 text: {error.reason} at byte {error.start}"
    elif not isinstance(error, yaml.MarkedYAMLError):
        said = f"expected YAML: {' '.join(str(error).split())}"
    else:
        said = f"expected YAML: {_reason(error, data.decode('utf-8-sig'))}"
        if (mark := error.problem_mark or error.context_mark) is not None:
            line, column = mark.line + 1, mark.column + 1
    return ConfigError([Problem(file, place_text(()), line, column, None, said)])


_PLAIN_WORDS = (
    ("mapping values are not allowed", "a colon where none is expected: wrong indentation, or text that needs quotes"),
    ("expected ',' or ']'", "a list in [ ] lacks its closing bracket or a comma"),
    ("expected ',' or '}'", "a mapping in { } lacks its closing brace or a comma"),
    ("did not find expected key", "wrong indentation: this line does not belong to any block above it"),
    (
        "did not find expected node content",
        "a list in [ ] or a mapping in { } is not closed, or has an empty item",
    ),
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
        return "this line is indented with a tab, and YAML takes spaces only"
    found = next((plain for theirs, plain in _PLAIN_WORDS if theirs in reason), None)
    return reason if found is None else f"{found} ({reason})"


def _from_nodes(file: str, text: str, nodes: Callable[[Loader], Iterator[yaml.Node | None]]) -> Iterator[Source]:
    """Values from nodes: for aliases, merge keys, several documents, and for everything with a problem to report."""
    left = _count(file, text) + MAX_ALIASED_VALUES  # counted before the composer, which must not get too much
    loader = Loader(text)
    try:
        for node in nodes(loader):
            source = Source(file, _root=node)
            builder = _Builder(source, left)
            source.values = None if node is None else builder.build(node, (), 0)
            source.problems, source.more_problems = builder.problems, builder.more
            left -= builder.count
            yield source
    finally:
        loader.dispose()


def _only_node(loader: Loader) -> Iterator[yaml.Node | None]:
    yield loader.get_single_node()


def _each_node(loader: Loader) -> Iterator[yaml.Node | None]:
    while loader.check_node():
        yield loader.get_node()


def _count(file: str, text: str) -> int:
    loader = Loader(text)
    try:
        return count_values(file, loader.get_event)
    finally:
        loader.dispose()


def _compose(text: str) -> yaml.Node | None:
    loader = Loader(text)
    try:
        node: yaml.Node | None = loader.get_single_node()
    finally:
        loader.dispose()
    return node


class _NotPlainError(Exception):
    """The file has something that only nodes can represent."""


def plain_values(text: str) -> Any:
    """The values of a file without anchors, aliases, tags and merge keys, straight from the parser's events: a third of
    the time that nodes take, and no garbage. Raises an exception for any other file, and for mistakes: these are for
    :func:`_from_nodes`, which returns the same values for plain files and knows positions."""
    loader = Loader(text)
    next_event = loader.get_event
    try:
        next_event()  # the stream's start
        if type(next_event()) is not DocumentStartEvent:
            return None  # an empty file
        values = _Plain(next_event).value(next_event(), 0)
        next_event()  # the document's end
        if type(next_event()) is not StreamEndEvent:
            raise _NotPlainError  # another document
        return values
    finally:
        loader.dispose()


class _Plain:
    """Builds values from events. Called for each of many thousand entries, hence its loops."""

    def __init__(self, next_event: Callable[[], Any]) -> None:
        self.next_event = next_event
        self.left = MAX_VALUES - 1
        """How many more values are allowed."""
        self._known: dict[str, Any] = {}
        """Values of unquoted text already converted; none of them is mutable."""

    def value(self, event: Any, depth: int) -> Any:
        """The value that begins with an event."""
        if event.anchor is not None or event.tag is not None:
            raise _NotPlainError
        kind = type(event)
        if kind is ScalarEvent:
            return self.scalar(event)
        if depth >= MAX_DEPTH:
            raise _NotPlainError
        if kind is MappingStartEvent:
            return self._mapping(depth)
        if kind is not SequenceStartEvent:
            raise _NotPlainError
        result = []
        while type(event := self.next_event()) is not SequenceEndEvent:
            self.left -= 1
            if self.left < 0:
                raise TooMuchError
            result.append(self.value(event, depth + 1))
        return result

    def _mapping(self, depth: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        next_event, scalar = self.next_event, self.scalar
        while True:
            event = next_event()
            if type(event) is MappingEndEvent:
                return result
            key = event.value if type(event) is ScalarEvent else None
            if key is None or key in result or key == MERGE_KEY or event.anchor is not None or event.tag is not None:
                raise _NotPlainError
            self.left -= 2
            if self.left < 0:
                raise TooMuchError
            event = next_event()
            if type(event) is not ScalarEvent or event.anchor is not None or event.tag is not None:
                result[key] = self.value(event, depth + 1)
            elif (text := event.value)[:1] not in NOT_ALWAYS_TEXT:
                result[key] = text
            else:
                result[key] = scalar(event)

    def scalar(self, event: Any) -> Any:
        """The value of a scalar: for unquoted text, a number, a date and so on if YAML sees one."""
        text: str = event.value
        if not event.implicit[0] or text[:1] not in NOT_ALWAYS_TEXT:
            return text
        value = self._known.get(text, MISSING)
        if isinstance(value, Missing):
            value = self._known[text] = unquoted(text)
        return value


class _Builder:
    """Builds plain values from YAML nodes and records positions in the source."""

    def __init__(self, source: Source, most_values: int) -> None:
        self.source = source
        self.most_values = most_values
        self.problems: list[Problem] = []
        self.more = 0
        """Further problems."""
        self.count = 0

    def _note(self, problem: Problem) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem)
        else:
            self.more += 1

    def build(self, node: yaml.Node, place: Place, depth: int) -> Any:
        """The value of a node, which is at `place`."""
        self.count += 1
        if depth > MAX_DEPTH or self.count > self.most_values:
            raise yaml.YAMLError("the file nests too deeply or expands to too many values (aliases?)")
        self._check_tag(node, place)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, place, depth)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, (*place, index), depth + 1) for index, item in enumerate(node.value)]
        if node.tag != PLAIN:
            return node.value
        try:
            return unquoted(node.value)
        except ValueError as error:
            text = f"expected a value, or quotes around it: {error}"
            self._note(self._problem(place, node, text, node.value))
            return None

    def _check_tag(self, node: yaml.Node, place: Place) -> None:
        if node.tag not in UNTAGGED:
            tag = node.tag.replace("tag:yaml.org,2002:", "!!")
            self._note(self._problem(place, node, f"expected a value without the tag {tag}; quote it if it is text"))

    def _mapping(self, node: yaml.MappingNode, place: Place, depth: int) -> dict[Any, Any]:
        result: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            if is_merge(key_node):
                self._merge(result, value_node, place, depth)
        own: dict[str, yaml.Node] = {}
        for key_node, value_node in node.value:
            if is_merge(key_node):
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                self._note(self._problem(place, key_node, "expected plain names as keys"))
                continue
            key = key_node.value
            self._check_tag(key_node, (*place, key))
            if key in own:
                text = f"expected each key once; it is already there at line {_position(own[key])[0]}"
                self._note(self._problem((*place, key), key_node, text))
                continue
            own[key] = key_node
            if value_node.tag == TEXT and isinstance(value_node, yaml.ScalarNode):  # most of a file of quotas
                self.count += 1
                result[key] = value_node.value
            else:
                result[key] = self.build(value_node, (*place, key), depth + 1)
        return result

    def _merge(self, into: dict[Any, Any], node: yaml.Node, place: Place, depth: int) -> None:
        """YAML's ``<<: *anchor``: the anchor's values that the mapping does not set itself."""
        for part in _merged(node):
            value = self.build(part, place, depth + 1)
            if not isinstance(value, dict):
                self._note(self._problem(place, node, "expected << to name a mapping"))
                continue
            for key, inner in value.items():
                into.setdefault(key, inner)

    def _problem(self, place: Place, node: yaml.Node, expected: str, value: Any = MISSING) -> Problem:
        line, column = _position(node)
        shown = None if isinstance(value, Missing) else value_text(value)
        return Problem(self.source.file, place_text(place), line, column, shown, expected)


def _position(node: yaml.Node) -> Position:
    return node.start_mark.line + 1, node.start_mark.column + 1


def _merged(node: yaml.Node) -> list[yaml.Node]:
    return list(node.value) if isinstance(node, yaml.SequenceNode) else [node]


def _find(root: yaml.Node | None, place: Place) -> tuple[yaml.Node | None, yaml.Node | None]:
    """The nodes of the key (None for items of lists) and of the value at a place; (None, None) if there is none."""
    key: yaml.Node | None = None
    node = root
    for part in place:
        key, node = _step(node, part, 0)
        if node is None:
            return None, None
    return key, node


def _step(node: yaml.Node | None, part: str | int, depth: int) -> tuple[yaml.Node | None, yaml.Node | None]:
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int):
        return (None, node.value[part]) if part < len(node.value) else (None, None)
    if not isinstance(node, yaml.MappingNode) or depth > MAX_DEPTH:
        return None, None
    for key, value in node.value:
        if isinstance(key, yaml.ScalarNode) and key.value == part and not is_merge(key):
            return key, value
    for key, value in node.value:
        if is_merge(key):
            for inner in _merged(value):
                found = _step(inner, part, depth + 1)
                if found[1] is not None:
                    return found
    return None, None
