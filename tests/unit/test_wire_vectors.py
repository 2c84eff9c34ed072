"""What real brokers of all supported releases said (tests/vectors), read and rewritten in all three ways."""

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from kio.schema.errors import ErrorCode

from proxy.core.wire import apis, responses, throttle
from proxy.core.wire.responses import NodeAddress
from proxy.core.wire.sharefetch import ShareFetchScrubber
from tests.lab import wire_schema
from tests.lab.releases import RUN
from tests.support.session_tools import from_broker, from_client, ledger, session
from tests.support.wire_tools import kafka_python_class, kio_read, rewritten, translated


class Vector(NamedTuple):
    kafka: str
    brokers: list[str]
    what: str
    api_key: int
    version: int
    request: bytes
    response: bytes

    @property
    def name(self) -> str:
        return f"{self.kafka}-{apis.api_name(self.api_key)}-{self.version}-{self.what.replace(' ', '-')}"


def load() -> list[Vector]:
    found = []
    for path in sorted((Path(__file__).parents[1] / "vectors").glob("kafka-*.json")):
        recorded = json.loads(path.read_text())
        for said in recorded["said"]:
            what, frames = said["what"], (bytes.fromhex(said[name]) for name in ("request", "response"))
            found.append(
                Vector(recorded["kafka"], recorded["brokers"], what, said["api_key"], said["version"], *frames)
            )
    return found


VECTORS = load()
SHARE_APIS = (78, 79)  # ShareFetch and ShareAcknowledge
every_vector = pytest.mark.parametrize("vector", VECTORS, ids=[vector.name for vector in VECTORS])


def decoded(vector: Vector, frame: bytes) -> Any:
    """The response by kafka-python, or by kio for what it cannot read: plain values that can be compared."""
    if vector.api_key in SHARE_APIS:
        return kio_read(frame, vector.api_key, vector.version)
    if vector.what == "another node":
        return kio_read(frame, vector.api_key, 4)  # with another error code than none
    cls = kafka_python_class(vector.api_key, "response")
    # kafka-python ends with version 4 of ApiVersions, whose response 5 is the same.
    version = 0 if vector.what == "unsupported version" else min(vector.version, cls.max_version)
    return cls.decode(frame, version=version, header=True, framed=True).to_dict()


def to_sidecar(nodes: Sequence[NodeAddress], complete: bool) -> list[tuple[str, int] | None]:
    return [("sidecar", 19_000 + node.node_id) for node in nodes]


def test_recorded_brokers_offer_known_versions() -> None:
    """Of every release that tests run: docs/_site/kafka_apis.py makes a page of these answers."""
    offers = [v for v in VECTORS if v.api_key == apis.API_VERSIONS and v.what == "as asked"]
    assert {vector.kafka for vector in offers} == set(RUN)
    for vector in offers:
        error, offered = responses.read_api_versions(vector.version, vector.response)
        assert error == 0
        for key, versions in offered.items():
            assert all(apis.is_known(key, version) for version in versions), (vector.name, key)


@every_vector
def test_vectors_throttle_field(vector: Vector) -> None:
    patched = bytearray(vector.response)
    done = throttle.patch_throttle(patched, 0, len(patched), vector.api_key, vector.version, 77_777)
    assert done is responses_have_throttle(vector)
    if not done:
        assert patched == vector.response
        return
    before, after = decoded(vector, vector.response), decoded(vector, bytes(patched))
    if isinstance(before, dict):
        assert before["throttle_time_ms"] == 0
        assert after == before | {"throttle_time_ms": 77_777}
    else:
        assert after.throttle_time.total_seconds() * 1000 == 77_777
        assert vector.what != "another node" or after.error_code is ErrorCode.rebootstrap_required
    lower = bytearray(patched)
    assert throttle.patch_throttle(lower, 0, len(lower), vector.api_key, vector.version, 5)
    assert lower == patched  # the higher one stays


def responses_have_throttle(vector: Vector) -> bool:
    """By kafka-python's schema; a refused version of ApiVersions is answered as version 0, which lacks the field."""
    if vector.what == "unsupported version":
        return False
    if vector.api_key in SHARE_APIS:
        return True
    cls = kafka_python_class(vector.api_key, "response")
    fields = [field for field in cls.json["fields"] if field["name"] == "ThrottleTimeMs"]
    return any(vector.version in wire_schema.versions(field["versions"]) for field in fields)


@every_vector
def test_no_broker_address_is_left(vector: Vector) -> None:
    if vector.api_key == apis.FETCH:
        return
    found = rewritten(vector.api_key, vector.version, vector.response, to_sidecar)
    if not responses.needs_rewrite(vector.api_key, vector.version) or vector.api_key == apis.API_VERSIONS:
        assert found == vector.response
        return
    ports = [struct.pack(">i", int(address.rpartition(":")[2])) for address in vector.brokers]
    assert b"127.0.0.1" not in found
    assert not any(port in found for port in ports)
    before, after = decoded(vector, vector.response), decoded(vector, found)
    if isinstance(before, dict):
        assert after == replaced(before, -1)
    else:
        assert after == translated(before, to_sidecar)


def replaced(value: Any, node_id: int) -> Any:
    if isinstance(value, list):
        return [replaced(element, node_id) for element in value]
    if not isinstance(value, dict):
        return value
    found: Any = value.get("node_id", value.get("broker_id", node_id))
    node_id = int(found)
    out = {name: replaced(inner, node_id) for name, inner in value.items()}
    if {"host", "port"} <= out.keys() and out["host"] and node_id >= 0:
        out["host"], out["port"] = "sidecar", 19_000 + node_id
    return out


@pytest.mark.parametrize("vector", [v for v in VECTORS if v.api_key == 78], ids=lambda vector: str(vector.name))
@pytest.mark.parametrize("step", [1, 3, 1000])
def test_share_fetch_is_scrubbed(vector: Vector, step: int) -> None:
    scrubber = ShareFetchScrubber(vector.version)
    parts = [vector.response[at : at + step] for at in range(0, len(vector.response), step)]
    out = b"".join(map(scrubber.feed, parts))
    from_client(one := session(ledger()), vector.request)
    assert b"".join(from_broker(one, part) for part in parts) == out
    assert scrubber._left == 0
    assert len(out) == len(vector.response)
    assert b"127.0.0.1" not in out
    message = decoded(vector, vector.response)
    if vector.what == "not the leader":
        assert message.node_endpoints
        assert message.responses[0].partitions[0].error_code is ErrorCode.not_leader_or_follower
        kept = len(out) - len(out.split(b"\x90\x4e")[1]) - 2  # up to the padding field, tag 10000
        assert vector.response.startswith(out[: kept - 2])
    else:
        assert out == vector.response
