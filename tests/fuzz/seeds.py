"""What fuzzing starts from: recorded traffic of real brokers and clients, and the files of the tests' configuration."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).parent.parent
RECORDED = Path(__file__).parent / "recorded"


class Exchange(NamedTuple):
    api_key: int
    version: int
    request: bytes
    response: bytes


class Stream(NamedTuple):
    client: str
    from_client: bytes
    from_broker: bytes


@cache
def exchanges() -> tuple[Exchange, ...]:
    """All recorded pairs: every version by a raw client (tests/vectors), and those in the streams of real clients."""
    found = []
    for path in sorted((TESTS / "vectors").glob("kafka-*.json")):
        for said in json.loads(path.read_text())["said"]:
            frames = bytes.fromhex(said["request"]), bytes.fromhex(said["response"])
            found.append(Exchange(said["api_key"], said["version"], *frames))
    for stream in streams():
        responses = {frame[4:8]: frame for frame in frames_of(stream.from_broker)}
        for request in frames_of(stream.from_client):
            response = responses.get(request[8:12])
            if response is not None:
                key, version = int.from_bytes(request[4:6], "big"), int.from_bytes(request[6:8], "big")
                found.append(Exchange(key, version, request, response))
    return tuple(dict.fromkeys(found))


@cache
def streams() -> tuple[Stream, ...]:
    return tuple(
        Stream(said["client"], bytes.fromhex(said["from_client"]), bytes.fromhex(said["from_broker"]))
        for path in sorted(RECORDED.glob("*.json"))
        for said in json.loads(path.read_text())["connections"]
    )


def frames_of(data: bytes) -> list[bytes]:
    found, at = [], 0
    while at + 4 <= len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        if end > len(data):
            break
        found.append(data[at:end])
        at = end
    return found


def configurations() -> list[bytes]:
    root = TESTS.parent
    files = [*root.glob("helm/kquota/ci/*.yaml"), *root.glob("docs/configuration.md")]
    texts = [path.read_bytes() for path in sorted(files)]
    blocks = [block.split(b"```")[0] for text in texts for block in text.split(b"```yaml\n")[1:]]
    return [*blocks, *(text for text in texts if b"```" not in text)]
