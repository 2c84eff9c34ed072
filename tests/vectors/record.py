"""Records what real brokers answer, as hex in kafka-<version>.json next to this file."""

from __future__ import annotations

import json
import struct
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from kio.static.constants import EntityType

from proxy.core.wire import messages
from proxy.core.wire.apis import API_VERSIONS, api_name
from tests.lab.kafka import KafkaCluster
from tests.lab.releases import BETWEEN, NEW, OLD
from tests.support.raw_client import RawClient
from tests.support.wire_tools import (
    framed,
    kafka_python_frame,
    kafka_python_messages,
    kio_class,
    kio_frame,
    read_api_versions,
)

TOPIC = "vectors"
HERE = Path(__file__).parent
UNSUPPORTED = 99


class Broker:
    """One connection on which requests are sent one by one; what was said is kept."""

    def __init__(self, host: str, port: int) -> None:
        self.client = RawClient((host, port))
        self.said: list[dict[str, Any]] = []

    def ask(self, what: str, api_key: int, version: int, request: bytes, *, keep: bool = True) -> bytes:
        """The response frame."""
        response = self.client.exchange(request)
        if keep:
            self.said.append(
                {
                    "what": what,
                    "api": api_name(api_key),
                    "api_key": api_key,
                    "version": version,
                    "request": request.hex(),
                    "response": response.hex(),
                }
            )
        return response


def message(name: str) -> Any:
    """A class of kafka-python."""
    return next(cls for cls in kafka_python_messages() if cls.name == name)


def decoded(name: str, version: int, response: bytes) -> Any:
    return message(name + "Response").decode(response, version=version, header=True, framed=True)


def records(version: int) -> bytes:
    """One record, in the format that this version of Produce takes."""
    from kafka.record import MemoryRecordsBuilder

    magic = 2 if version >= 3 else 1 if version == 2 else 0
    builder = MemoryRecordsBuilder(magic, 0, 1 << 14)
    builder.append(timestamp=1_700_000_000_000, key=b"key", value=b"value", headers=[])
    builder.close()
    return bytes(builder.buffer())


def is_fetch_15(said: dict[str, Any]) -> bool:
    return (said["api"], said["version"]) == ("Fetch", 15)


class Recording:
    """Everything that is asked of one cluster."""

    def __init__(self, cluster: KafkaCluster, whole: bool) -> None:
        self.whole = whole
        self.brokers = {node.node_id: Broker(node.host, node.port) for node in cluster.nodes}
        self.first = next(iter(self.brokers.values()))
        answer = self.first.ask("", 18, 0, messages.api_versions_request(0, 1, "recorder"), keep=False)
        self.offered = read_api_versions(0, answer)

    def versions(self, name: str) -> range:
        """What broker and library both have."""
        cls = message(name + "Request")
        low, high = self.offered[cls.API_KEY]
        return range(low, min(high, cls.max_version) + 1)

    def ask(self, broker: Broker, what: str, name: str, version: int, *, keep: bool = True, **fields: Any) -> bytes:
        cls = message(name + "Request")
        request = kafka_python_frame(cls, version, 100 + version, **fields)
        return broker.ask(what, cls.API_KEY, version, request, keep=keep)

    def everything(self) -> list[dict[str, Any]]:
        self.api_versions()
        self.create_topic()
        self.metadata()
        self.addresses()
        self.produce()
        self.fetch()
        self.share()
        said = [one for broker in self.brokers.values() for one in broker.said]
        if self.whole:
            return said
        newest = {one["api_key"]: one["version"] for one in said if one["version"] != UNSUPPORTED}
        return [one for one in said if one["version"] in (newest[one["api_key"]], UNSUPPORTED) or is_fetch_15(one)]

    def api_versions(self) -> None:
        for version in self.versions("ApiVersions"):
            software: dict[str, Any] = (
                {"client_software_name": "recorder", "client_software_version": "1"} if version >= 3 else {}
            )
            self.ask(self.first, "as asked", "ApiVersions", version, **software)
        if self.offered[API_VERSIONS][1] >= 5:  # kafka-python ends with 4
            for what, node_id in (("as asked", next(iter(self.brokers))), ("another node", 99)):
                request = messages.api_versions_request(
                    5, 105, "client-ß", "recorder", "1", cluster_id=self.cluster_id(), node_id=node_id
                )
                self.first.ask(what, API_VERSIONS, 5, request)
        header = struct.pack(">hhih", 18, UNSUPPORTED, 7, -1) + b"\0"
        self.first.ask("unsupported version", 18, UNSUPPORTED, framed(header + b"\2a\2b\0"))

    def cluster_id(self) -> str:
        answer = self.first.ask("", 3, 9, messages.metadata_request(9, 1, "recorder"), keep=False)
        found: str = decoded("Metadata", 9, answer).cluster_id
        return found

    def create_topic(self) -> None:
        topics = [{"name": TOPIC, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}]
        self.ask(self.first, "", "CreateTopics", 4, keep=False, topics=topics, timeout_ms=20_000, validate_only=False)
        until = time.monotonic() + 60
        while time.monotonic() < until:
            found = decoded("Metadata", 12, self.ask_metadata(12, keep=False)).topics[0]
            if found.error_code == 0 and found.partitions and found.partitions[0].leader_id in self.brokers:
                self.topic_id = uuid.UUID(str(found.topic_id))
                leader = found.partitions[0].leader_id
                self.leader = self.brokers[leader]
                self.other = next(broker for node_id, broker in self.brokers.items() if node_id != leader)
                return
            time.sleep(0.1)
        raise TimeoutError(f"no leader for {TOPIC}: {found}")

    def ask_metadata(self, version: int, *, keep: bool = True) -> bytes:
        topics = [{"name": TOPIC}]
        return self.ask(self.first, "one topic", "Metadata", version, keep=keep, topics=topics)

    def metadata(self) -> None:
        for version in self.versions("Metadata"):
            self.ask_metadata(version)

    def addresses(self) -> None:
        until = time.monotonic() + 60
        while time.monotonic() < until:  # the first question makes the broker create the topic of offsets
            found = decoded("FindCoordinator", 3, self.ask(self.first, "", "FindCoordinator", 3, keep=False, key="g"))
            if found.error_code == 0:
                break
            time.sleep(0.1)
        for version in self.versions("FindCoordinator"):
            key: dict[str, Any] = {"coordinator_keys": ["g", "other"]} if version >= 4 else {"key": "g"}
            self.ask(self.first, "group", "FindCoordinator", version, **key | ({"key_type": 0} if version else {}))
        if 6 in self.versions("FindCoordinator"):  # not a share group's key: an error, without a node
            self.ask(self.first, "error", "FindCoordinator", 6, coordinator_keys=["bad"], key_type=2)
        for version in self.versions("DescribeCluster"):
            self.ask(self.first, "brokers", "DescribeCluster", version)
        for version in self.versions("DescribeQuorum"):
            topics = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
            self.ask(self.first, "voters", "DescribeQuorum", version, topics=topics)

    def produce(self) -> None:
        for version in self.versions("Produce"):
            if version < 3 and self.offered[1][0] >= 4:
                continue  # 4.x says that it has them, for old librdkafka, and closes the connection (KAFKA-18659)
            topic = {"topic_id": self.topic_id} if version >= 13 else {"name": TOPIC}
            partition = {"index": 0, "records": records(version)}
            fields: dict[str, Any] = {
                "acks": 1,
                "timeout_ms": 5000,
                "topic_data": [{**topic, "partition_data": [partition]}],
            }
            self.ask(self.leader, "acks 1", "Produce", version, **fields)
            if version >= 9:
                self.ask(self.other, "not the leader", "Produce", version, **fields)

    def fetch(self) -> None:
        for version in self.versions("Fetch"):
            topic = {"topic_id": self.topic_id} if version >= 13 else {"topic": TOPIC}
            partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 200}
            topics = [{**topic, "partitions": [partition]}]
            fields: dict[str, Any] = {"max_wait_ms": 0, "min_bytes": 0, "topics": topics}
            if version >= 3:
                fields["max_bytes"] = 200
            if version < 7:
                self.ask(self.leader, "sessionless", "Fetch", version, **fields)
                continue
            self.ask(self.leader, "sessionless", "Fetch", version, **fields, session_id=0, session_epoch=-1)
            answer = self.ask(self.leader, "full", "Fetch", version, **fields, session_id=0, session_epoch=0)
            session = decoded("Fetch", version, answer).session_id
            changed = fields | {"topics": []}
            self.ask(self.leader, "incremental", "Fetch", version, **changed, session_id=session, session_epoch=1)
            if version >= 12:
                self.ask(self.other, "not the leader", "Fetch", version, **fields, session_id=0, session_epoch=-1)

    def share(self) -> None:
        """Share groups, asked of a broker that does not lead: the answer names the one that does."""
        low, high = self.offered.get(78, (0, -1))
        for version in range(max(low, 1), high + 1):
            for broker, what in ((self.leader, "leader"), (self.other, "not the leader")):
                for key in (78, 79):
                    request = self.share_request(key, version, 0 if key == 78 else 1)
                    broker.ask(what, key, version, kio_frame(request, 100 + version))

    def share_request(self, key: int, version: int, epoch: int) -> Any:
        from datetime import timedelta

        cls = kio_class(key, version, EntityType.request)
        module = sys.modules[cls.__module__]
        partition = (module.FetchPartition if key == 78 else module.AcknowledgePartition)(
            partition_index=0, acknowledgement_batches=()
        )
        topic = (module.FetchTopic if key == 78 else module.AcknowledgeTopic)(
            topic_id=self.topic_id, partitions=(partition,)
        )
        values: dict[str, Any] = {
            "group_id": "share",
            "member_id": f"member-{version}",
            "share_session_epoch": epoch,
            "topics": (topic,),
        }
        if key == 78:
            values |= {"max_wait": timedelta(0), "min_bytes": 0, "max_bytes": 1000, "max_records": 10}
            values |= {"batch_size": 10, "forgotten_topics_data": ()}
        if version >= 2:
            values["is_renew_ack"] = False
        return cls(**values)


def main(wanted: list[str]) -> None:
    """Start each version, ask everything, write the file."""
    ends = (NEW, OLD)
    for version in wanted or (*ends, *BETWEEN):
        with KafkaCluster.start(3, version, overrides={"offsets.topic.num.partitions": "1"}, progress=print) as cluster:
            said = Recording(cluster, version in ends).everything()
            brokers = [f"{node.host}:{node.port}" for node in cluster.nodes]
        said.sort(key=lambda one: (one["api_key"], one["version"], one["what"]))
        lines = ",\n".join(json.dumps(one) for one in said)
        path = HERE / f"kafka-{version}.json"
        path.write_text(f'{{"kafka": "{version}", "brokers": {json.dumps(brokers)}, "said": [\n{lines}\n]}}\n')
        print(f"{path.name}: {len(said)} answers, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
