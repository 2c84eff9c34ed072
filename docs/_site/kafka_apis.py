"""The page of Kafka's APIs: which versions the tested brokers offer, and what kquota does with them.

What brokers offer is in the recordings of tests/vectors, what kquota does in the tables of proxy/core/wire.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from proxy.core.wire import responses, schema, topics
from proxy.core.wire.apis import (
    ALTER_CLIENT_QUOTAS,
    API_VERSIONS,
    DESCRIBE_CLIENT_QUOTAS,
    FETCH,
    METADATA,
    PRODUCE,
    SHARE_FETCH,
)
from proxy.core.wire.sasl import SASL_AUTHENTICATE, SASL_HANDSHAKE

VECTORS: Final = Path(__file__).resolve().parents[2] / "tests/vectors"
_MUTATIONS: Final = "mutations charged; topics over quota are answered here"
_QUOTAS: Final = "answered here where `quotas.alter` says so"
_LOGIN: Final = "passed on; the user is read"
_DONE: Final = {
    PRODUCE: "bytes charged",
    FETCH: "bytes charged; `max_bytes` lowered; over quota answered here",
    SHARE_FETCH: "bytes charged",
    API_VERSIONS: "versions that kquota does not know are taken out, or answered here",
    topics.CREATE_TOPICS: _MUTATIONS,
    topics.DELETE_TOPICS: _MUTATIONS,
    topics.CREATE_PARTITIONS: _MUTATIONS,
    METADATA: "topics that it creates charged; over quota it may create none",
    DESCRIBE_CLIENT_QUOTAS: _QUOTAS,
    ALTER_CLIENT_QUOTAS: _QUOTAS,
    SASL_HANDSHAKE: _LOGIN,
    SASL_AUTHENTICATE: _LOGIN,
}


def offered() -> dict[str, dict[int, tuple[int, int]]]:
    """Release -> API key -> (lowest, highest version), newest release first."""
    found = {}
    for path in VECTORS.glob("kafka-*.json"):
        recorded = json.loads(path.read_text())
        for said in recorded["said"]:
            if (said["api_key"], said["what"]) == (API_VERSIONS, "as asked"):
                frame = bytes.fromhex(said["response"])
                found[recorded["kafka"]] = responses.read_api_versions(said["version"], frame)[1]
    return dict(sorted(found.items(), key=lambda pair: [-int(part) for part in pair[0].split(".")]))


def page() -> str:
    """The whole page, in Markdown."""
    releases = offered()
    lines = [
        "---", "hide: [toc]", "---", "",
        "# Kafka's APIs",
        "",
        "What brokers of each tested release offer to clients, and what kquota does with it in rewrite mode. Made from "
        "recordings of these brokers and from kquota's tables at each build. [Kafka versions](../kafka-versions.md) "
        "says how long a release is supported.",
        "",
        "Each request is charged request time, except for logins, and passed on unchanged unless the last column says "
        "otherwise. *Throttle field*: versions whose responses have a throttle time.",
        "",
        f"| key | API | {' | '.join(releases)} | throttle field | kquota |",
        f"|---|---|{'---|' * len(releases)}---|---|",
    ]  # fmt: skip
    for key in sorted({key for release in releases.values() for key in release}):
        known = [release[key] for release in releases.values() if key in release]
        spans = [_span(*release[key]) if key in release else "" for release in releases.values()]
        low, high = (pick(spans_of[at] for spans_of in known) for at, pick in ((0, min), (1, max)))
        _, _, last, _, first, _ = schema.APIS[key]
        told = range(max(first, low), min(last, high) + 1)
        cells = [str(key), schema.API_NAMES[key], *spans, _spans(told), _done(key, range(low, high + 1))]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _done(key: int, versions: range) -> str:
    def those(condition: Callable[[int], object]) -> str:
        return _spans(version for version in versions if condition(version))

    parts = [_DONE[key]] if key in _DONE else []
    if key == FETCH:
        lowered = those(lambda version: responses.fetch_version_upstream(version) != version)
        parts.append(f"{lowered} sent as {responses.fetch_version_upstream(versions[-1])}")
    elif key != API_VERSIONS and (rewritten := those(lambda version: responses.needs_rewrite(key, version))):
        parts.append(f"addresses rewritten in {rewritten}")
    if key in schema.TOPIC_WALKS:
        parts.append("the fleet's topic refused")
    return "; ".join(parts)


def _spans(versions: Iterable[int]) -> str:
    runs: list[list[int]] = []
    for version in versions:
        if runs and runs[-1][1] == version - 1:
            runs[-1][1] = version
        else:
            runs.append([version, version])
    return ", ".join(_span(*run) for run in runs)


def _span(low: int, high: int) -> str:
    return f"{low}" if low == high else f"{low} to {high}"
