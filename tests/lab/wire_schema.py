"""Writes schema.py from the message schemas that Apache Kafka publishes inside its kafka-clients jars.

    python -m tests.lab.wire_schema           write proxy/core/wire/schema.py, and say what is new
    python -m tests.lab.wire_schema --check   exit 1 when the committed file differs from what would be written

The releases that kquota supports are merged; those before 4.0 still have the oldest versions of most APIs. For each API
and version the layout comes from the newest release that has it; all that have it must agree, or the generator
stops. It also stops when a response that a broker sends to clients carries a host
and a port that ADDRESSES does not classify yet.
"""

from __future__ import annotations

import json
import re
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from proxy.core.wire import primitives as p
from proxy.core.wire.primitives import Program, Step
from tests.lab.kafka.jars import resolve
from tests.lab.releases import PROTOCOLS

TARGET: Final = Path(__file__).parents[2] / "proxy/core/wire/schema.py"
NEVER: Final = 1 << 15  # one more than the highest int16: never flexible

Field: TypeAlias = dict[str, Any]
Structs: TypeAlias = dict[str, list[Field]]

FIXED_SIZES: Final = {
    "bool": 1, "int8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8, "float64": 8, "uuid": 16,
}  # fmt: skip

# Responses on a broker's listener that carry a host and a port, and what they are.
ADDRESSES: Final = {
    "Produce": "leaders that moved (KIP-951)",
    "Fetch": "leaders that moved (KIP-951); never seen by clients of kquota, which asks brokers with version 15",
    "Metadata": "all brokers",
    "FindCoordinator": "the coordinators",
    "DescribeCluster": "all brokers, or all controllers when endpoint_type is 2 (KIP-919)",
    "ShareFetch": "leaders that moved (KIP-932)",
    "ShareAcknowledge": "leaders that moved (KIP-932)",
}
NOT_ADDRESSES: Final = {
    "DescribeQuorum": "controllers (KIP-853), shown to administrators; no client of a broker connects to them",
    "StreamsGroupHeartbeat": "endpoints of Kafka Streams applications (KIP-1071), not of brokers",
    "StreamsGroupDescribe": "endpoints of Kafka Streams applications (KIP-1071), not of brokers",
}

# Requests that read or write records of topics, or move them: which topics they name.
NAMING: Final = {
    "Produce", "Fetch", "ListOffsets", "OffsetForLeaderEpoch", "AddPartitionsToTxn", "TxnOffsetCommit", "ShareFetch",
    "ElectLeaders", "AlterReplicaLogDirs", "AlterPartitionReassignments",
}  # fmt: skip


class SchemaError(Exception):
    """A published schema has a form that this generator does not support; the message names it."""


class Message:
    """One schema file: the layout of a request or a response in some range of versions."""

    def __init__(self, raw: Field) -> None:
        self.name: str = raw["name"]
        self.fields: list[Field] = raw.get("fields", [])
        self.structs: Structs = {struct["name"]: struct["fields"] for struct in raw.get("commonStructs", ())}
        self.listeners: list[str] = raw.get("listeners", [])
        self.unstable = bool(raw.get("latestVersionUnstable", False))
        self.versions = versions(raw["validVersions"])
        self.flexible = versions(raw.get("flexibleVersions", "none"))

    def program(self, version: int) -> Program:
        return _merged(tuple(_struct(self.fields, version, version in self.flexible, self.structs)))

    def carries_addresses(self) -> bool:
        return any(_is_address(fields) for fields in _all_structs(self.fields, self.structs))


def versions(text: str) -> range:
    """`"0-3"`, `"2+"`, `"4"` or `"none"` as a range."""
    if text == "none":
        return range(0)
    if text.endswith("+"):
        return range(int(text[:-1]), NEVER)
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def _is_address(fields: list[Field]) -> bool:
    return {"Host", "Port"} <= {field["name"] for field in fields}


def _all_structs(fields: list[Field], structs: Structs) -> Iterator[list[Field]]:
    yield fields
    for field in fields:
        inner = _fields_of(field, structs)
        if inner is not None:
            yield from _all_structs(inner, structs)


def _fields_of(field: Field, structs: Structs) -> list[Field] | None:
    inner: list[Field] | None = field.get("fields") or structs.get(field["type"].removeprefix("[]"))
    return inner


def _struct(fields: list[Field], version: int, flexible: bool, structs: Structs) -> Iterator[Step]:
    addresses = _is_address(fields)
    tagged: list[tuple[int, Program]] = []
    for field in fields:
        if version not in versions(field["versions"]):
            continue
        steps = tuple(_field(field, version, flexible, structs, addresses))
        if version in versions(field.get("taggedVersions", "none")):
            tagged.append((field["tag"], _merged(steps)))
        else:
            yield from steps
    if flexible:
        # Only tags that lead to an address are entered; the walker skips all others by their size.
        yield p.TAGS, tuple((tag, program) for tag, program in sorted(tagged) if _has(program, (p.HOST, p.VARHOST)))


def _field(field: Field, version: int, flexible: bool, structs: Structs, addresses: bool) -> Iterator[Step]:
    kind: str = field["type"]
    nullable = version in versions(field.get("nullableVersions", "none"))
    if kind.startswith("[]"):
        element = _merged(tuple(_value(field, kind[2:], version, flexible, structs, False)))
        yield (p.VARARRAY if flexible else p.ARRAY), element
    elif nullable and _fields_of(field, structs) is not None:
        yield p.NULLABLE, _merged(tuple(_value(field, kind, version, flexible, structs, addresses)))
    else:
        yield from _value(field, kind, version, flexible, structs, addresses)


def _value(field: Field, kind: str, version: int, flexible: bool, structs: Structs, addresses: bool) -> Iterator[Step]:
    name: str = field["name"]
    inner = _fields_of(field, structs)
    if inner is not None:
        yield from _struct(inner, version, flexible, structs)
    elif name == "ThrottleTimeMs" and kind == "int32":
        yield p.THROTTLE, 0
    elif name in ("NodeId", "BrokerId") and kind == "int32":
        yield p.NODE_ID, 0
    elif name == "EndpointType" and kind == "int8":
        yield p.ENDPOINT_TYPE, 0
    elif addresses and name == "Host":
        yield (p.VARHOST if flexible else p.HOST), 0
    elif addresses and name == "Port":
        yield p.PORT, FIXED_SIZES[kind]
    elif name == "TopicId" and kind == "uuid":
        yield p.TOPIC_ID, 16
    elif kind in FIXED_SIZES:
        yield p.SKIP, FIXED_SIZES[kind]
    elif kind == "string" and field.get("entityType") == "topicName":
        yield (p.VARTOPIC if flexible else p.TOPIC), 0
    elif kind == "string":
        yield (p.VARLEN if flexible else p.STRING), 0
    elif kind in ("bytes", "records"):
        yield (p.VARLEN if flexible else p.BYTES), 0
    else:
        raise SchemaError(f"field {name} has the unknown type {kind}")


def _has(program: Program, codes: tuple[int, ...]) -> bool:
    """Whether any step, however deep, has one of `codes`."""
    for code, argument in program:
        if code in codes:
            return True
        if code in (p.ARRAY, p.VARARRAY, p.NULLABLE) and _has(argument, codes):
            return True
        if code == p.TAGS and any(_has(inner, codes) for _, inner in argument):
            return True
    return False


def _merged(steps: Program) -> Program:
    """The same walk with neighbouring fixed-size fields joined."""
    out: list[Step] = []
    for step in steps:
        if step[0] == p.SKIP and out and out[-1][0] == p.SKIP:
            out[-1] = (p.SKIP, out[-1][1] + step[1])
        else:
            out.append(step)
    return tuple(out)


def _only(program: Program, wanted: tuple[int, ...]) -> Program:
    """`program` up to its last step that leads to one of `wanted`; other marks become bytes to skip."""
    plain = {
        p.THROTTLE: (p.SKIP, 4), p.NODE_ID: (p.SKIP, 4), p.ENDPOINT_TYPE: (p.SKIP, 1), p.TOPIC: (p.STRING, 0),
        p.VARTOPIC: (p.VARLEN, 0), p.TOPIC_ID: (p.SKIP, 16),
    }  # fmt: skip

    def unmark(step: Step) -> Step:
        code, argument = step
        if code in plain and code not in wanted:
            return plain[code]
        if code in (p.ARRAY, p.VARARRAY, p.NULLABLE):
            return code, _merged(tuple(map(unmark, argument)))
        if code == p.TAGS:
            return code, tuple((tag, _merged(tuple(map(unmark, inner)))) for tag, inner in argument)
        return step

    end = max((at + 1 for at, step in enumerate(program) if _has((step,), wanted)), default=0)
    return _merged(tuple(map(unmark, program[:end])))


TOPICS: Final = (p.TOPIC, p.VARTOPIC, p.TOPIC_ID)


def _address_walk(program: Program) -> Program | None:
    if not _has(program, (p.HOST, p.VARHOST)):
        return None
    end = max(at + 1 for at, step in enumerate(program) if _has((step,), (p.PORT,)))
    return _only(program[:end], (p.HOST, p.VARHOST, p.PORT, p.NODE_ID, p.ENDPOINT_TYPE))


def _throttle(program: Program) -> tuple[int, Program | None] | None:
    """(offset in the body, None), or (-1, walk) when fields of varying size come first, or None when there is none."""
    walk = _only(program, (p.THROTTLE,))
    if not walk:
        return None
    if walk[0][0] == p.THROTTLE:
        return 0, None
    if len(walk) == 2 and walk[0][0] == p.SKIP:
        return walk[0][1], None
    return -1, walk


def load(jar: Path) -> dict[tuple[int, str], Message]:
    """Every request and response schema in `jar`, by (API key, "request" or "response")."""
    found: dict[tuple[int, str], Message] = {}
    with zipfile.ZipFile(jar) as archive:
        for name in sorted(archive.namelist()):
            if not re.fullmatch(r"common/message/\w+\.json", name):
                continue
            text = re.sub(r"^\s*//.*$", "", archive.read(name).decode(), flags=re.MULTILINE)
            raw = json.loads(text)
            if raw["type"] in ("request", "response"):
                found[raw["apiKey"], raw["type"]] = Message(raw)
    if not found:
        raise SchemaError(f"{jar} holds no message schemas")
    return found


def find_jar(release: str) -> Path:
    """The kafka-clients jar of `release`, from the cache, or downloaded once."""
    return next(path for path in resolve(release) if path.name == f"kafka-clients-{release}.jar")


def news(new: dict[tuple[int, str], Message], old: dict[tuple[int, str], Message]) -> list[str]:
    """APIs and versions, such as `Produce 14`, that the older of two releases does not have."""
    return [
        f"{message.name.removesuffix('Request')} {version}"
        for (key, kind), message in sorted(new.items())
        if kind == "request"
        for version in message.versions
        if (key, kind) not in old or version not in old[key, kind].versions
    ]


class Layouts:
    """The union of the releases: for each API its versions, and for each version the newest layout."""

    def __init__(self, releases: list[dict[tuple[int, str], Message]]) -> None:
        self.releases = releases
        self.keys = sorted({key for release in releases for key, _ in release})

    def _all(self, key: int, kind: str) -> list[Message]:
        return [release[key, kind] for release in self.releases if (key, kind) in release]

    def newest(self, key: int, kind: str, version: int) -> Message:
        """The message of the newest release that has this version. Raises SchemaError when releases disagree."""
        having = [message for message in self._all(key, kind) if version in message.versions]
        programs = {message.program(version) for message in having if not message.unstable}
        flexible = {version in message.flexible for message in having}
        # A version that was unstable in an old release (early access) may have changed before it became stable.
        if (len(programs) > 1 and not self._unstable(key, version)) or len(flexible) > 1:
            raise SchemaError(f"{having[0].name} version {version} differs between {', '.join(PROTOCOLS)}")
        return having[0]

    def _unstable(self, key: int, version: int) -> bool:
        requests = [request for request in self._all(key, "request") if request.versions]
        return any(request.unstable and version == request.versions[-1] for request in requests)

    def versions(self, key: int) -> range:
        """All versions that any release has. Raises SchemaError when there is a gap or responses lack some."""
        spans = [message.versions for message in self._all(key, "request") if message.versions]
        union = range(min(span[0] for span in spans), max(span[-1] for span in spans) + 1)
        if gaps := [version for version in union if not any(version in span for span in spans)]:
            raise SchemaError(f"API {key} has gaps at versions {gaps}")
        return union

    def name(self, key: int) -> str:
        return self._all(key, "request")[0].name.removesuffix("Request")

    def flexible_from(self, key: int) -> int:
        """The first flexible version, NEVER when none is. Requests and responses must agree."""
        found = NEVER
        for version in reversed(self.versions(key)):
            flexible = {version in self.newest(key, kind, version).flexible for kind in ("request", "response")}
            if len(flexible) > 1 or (found == NEVER and flexible == {False} and version != self.versions(key)[-1]):
                raise SchemaError(f"API {key} version {version}: requests and responses, or versions, disagree")
            if flexible == {False}:
                break
            found = version
        return found

    def check_addresses(self) -> None:
        for release in self.releases:
            for (key, kind), message in release.items():
                if kind != "response" or not message.carries_addresses():
                    continue
                known = self.name(key) in ADDRESSES or self.name(key) in NOT_ADDRESSES
                if "broker" in release[key, "request"].listeners and not known:
                    raise SchemaError(f"{message.name} carries a host and a port: a broker's address or not?")


_NAMES: Final = {
    getattr(p, name): f"p.{name}"
    for name in (
        "SKIP", "STRING", "VARLEN", "BYTES", "ARRAY", "VARARRAY", "TAGS", "NULLABLE",
        "NODE_ID", "ENDPOINT_TYPE", "HOST", "VARHOST", "PORT", "THROTTLE", "TOPIC", "VARTOPIC", "TOPIC_ID",
    )
}  # fmt: skip


def _python(program: Program) -> str:
    def one(step: Step) -> str:
        code, argument = step
        if code in (p.ARRAY, p.VARARRAY, p.NULLABLE):
            return f"({_NAMES[code]}, {_python(argument)})"
        if code == p.TAGS:
            return f"({_NAMES[code]}, ({''.join(f'({tag}, {_python(inner)}), ' for tag, inner in argument).strip()}))"
        return f"({_NAMES[code]}, {argument})"

    return "(" + ", ".join(map(one, program)) + ("," if len(program) == 1 else "") + ")"


def _runs(values: Sequence[tuple[int, Any]]) -> list[tuple[int, int, Any]]:
    """Neighbouring versions with equal values that are not None, as (first, last, value)."""
    runs: list[tuple[int, int, Any]] = []
    for version, value in values:
        if value is None:
            continue
        if runs and runs[-1][2] == value and runs[-1][1] == version - 1:
            runs[-1] = (runs[-1][0], version, value)
        else:
            runs.append((version, version, value))
    return runs


def render(releases: list[dict[tuple[int, str], Message]]) -> str:
    layouts = Layouts(releases)
    layouts.check_addresses()
    apis: list[str] = []
    throttle_walks: list[str] = []
    address_walks: list[str] = []
    topic_walks: list[str] = []
    for key in layouts.keys:
        span, name = layouts.versions(key), layouts.name(key)
        programs = {version: layouts.newest(key, "response", version).program(version) for version in span}
        positions = [(version, _throttle(program)) for version, program in programs.items()]
        fixed = _runs([(version, at and at[0]) for version, at in positions]) or [(NEVER, span[-1], 0)]
        *others, (first, last, offset) = fixed
        if others or last != span[-1]:
            raise SchemaError(f"{name} has its throttle time in several places, or not in version {span[-1]}")
        apis.append(f'    {key}: ("{name}", {span[0]}, {span[-1]}, {layouts.flexible_from(key)}, {first}, {offset}),')
        throttle_walks += _walk_lines(key, name, [(version, at and at[1]) for version, at in positions])
        if name in ADDRESSES:
            walks = [(version, _address_walk(program)) for version, program in programs.items()]
            address_walks += _walk_lines(key, f"{name}: {ADDRESSES[name]}", walks)
        if name in NAMING:
            asked = [(version, layouts.newest(key, "request", version).program(version)) for version in span]
            topic_walks += _walk_lines(key, name, [(version, _only(walk, TOPICS)) for version, walk in asked])
    return "\n".join([
        f'"""GENERATED by `python -m tests.lab.wire_schema` from kafka-clients {", ".join(PROTOCOLS)}: do not edit.',
        "",
        "The same jars give the same file; `python -m tests.lab.wire_schema --check` compares, and a test runs it.",
        '"""',
        "",
        "# fmt: off",
        "from typing import Final",
        "",
        "from proxy.core.wire import primitives as p",
        "",
        f"SOURCES: Final = {PROTOCOLS!r}".replace("'", '"'),
        '"""Releases of kafka-clients that the tables were made from, newest first."""',
        "",
        "APIS: Final[dict[int, tuple[str, int, int, int, int, int]]] = {",
        *apis,
        "}",
        '"""API key: (name, lowest version, highest version, first flexible version, first version with a',
        f'throttle_time_ms, its offset in the body; -1: see THROTTLE_WALKS). First version {NEVER}: none has it."""',
        "",
        "API_NAMES: Final[dict[int, str]] = {key: known[0] for key, known in APIS.items()}",
        '"""API key: name, such as Produce."""',
        "",
        *_walks("THROTTLE_WALKS", throttle_walks, "response body that ends with the throttle field"),
        *_walks("ADDRESS_WALKS", address_walks, "response body through the last host and port"),
        *_walks("TOPIC_WALKS", topic_walks, "request body through the last topic"),
    ])  # fmt: skip


def _walks(name: str, lines: list[str], over: str) -> list[str]:
    text = f'"""API key: (first version, last version, walk over the {over})."""'
    return [f"{name}: Final[dict[int, tuple[tuple[int, int, p.Program], ...]]] = {{", *lines, "}", text, ""]


def _walk_lines(key: int, comment: str, walks: Sequence[tuple[int, Program | None]]) -> list[str]:
    lines = [f"        ({first}, {last}, {_python(walk)})," for first, last, walk in _runs(walks)]
    return [f"    {key}: (  # {comment}", *lines, "    ),"] if lines else []


def main(arguments: list[str]) -> int:
    """Write or check schema.py. Exit code 1 when the check fails, 2 for wrong arguments."""
    if arguments not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    releases = [load(find_jar(release)) for release in PROTOCOLS]
    text = render(releases)
    if arguments:
        if TARGET.read_text() != text:
            print(f"{TARGET.name} differs from what the published schemas give: run `make schema`", file=sys.stderr)
            return 1
        return 0
    TARGET.write_text(text)
    print(f"new in Kafka {PROTOCOLS[0]} since {PROTOCOLS[1]}: {', '.join(news(*releases[:2])) or 'nothing'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
