"""The fleet's topic cannot be changed through the sidecar: all versions of six requests, encoded by kafka-python."""

from __future__ import annotations

import io
import time
import uuid
from typing import Any

import pytest
from kafka.protocol.admin import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    CreatePartitionsResponse,
    CreateTopicsResponse,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteTopicsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from kafka.protocol.metadata import MetadataResponse

from proxy.core.interceptors.intercept import AdminRequest, Answer, Ask, Forward, Work
from proxy.core.interceptors.mutations import MutationQuota
from proxy.core.interceptors.reserved_topic import ReservedTopic
from proxy.core.wire.apis import version_range
from proxy.core.wire.frames import WireError
from proxy.core.wire.topic_changes import (
    ALTER_CONFIGS,
    DELETE_RECORDS,
    INCREMENTAL_ALTER_CONFIGS,
    TOPIC_CHANGES,
)
from proxy.core.wire.topics import CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS
from quota.ledger import Account, Ledger
from quota.table import QuotaTable
from tests.support.mutation_tools import create, delete, encoded, partitions
from tests.support.session_tools import finished

TOPIC, NOT_ATTEMPTED, REFUSED = "kquota-fleet", 55, 29
LEDGER = Ledger(QuotaTable([]))


def _delete_records(version: int, names: list[str]) -> Any:
    cls = DeleteRecordsRequest.DeleteRecordsTopic
    part = cls.DeleteRecordsPartition
    return DeleteRecordsRequest(
        version=version,
        topics=[
            cls(
                version=version,
                name=name,
                partitions=[part(version=version, partition_index=index, offset=-1) for index in range(2)],
            )
            for name in names
        ],
        timeout_ms=1000,
    )


def _alter(version: int, names: list[str], *, kind: int = 2, incremental: bool = False) -> Any:
    request = IncrementalAlterConfigsRequest if incremental else AlterConfigsRequest
    resource = request.AlterConfigsResource
    operation = {"config_operation": 0} if incremental else {}
    config = resource.AlterableConfig(version=version, name="retention.ms", value="1", **operation)
    return request(
        version=version,
        resources=[
            resource(version=version, resource_type=kind, resource_name=name, configs=[config]) for name in names
        ],
        validate_only=False,
    )


def _requests(api_key: int, version: int, names: list[str]) -> Any:
    made = {
        CREATE_TOPICS: lambda: create(version, dict.fromkeys(names, 1)),
        DELETE_TOPICS: lambda: delete(version, names),
        CREATE_PARTITIONS: lambda: partitions(version, dict.fromkeys(names, 9)),
        DELETE_RECORDS: lambda: _delete_records(version, names),
        ALTER_CONFIGS: lambda: _alter(version, names),
        INCREMENTAL_ALTER_CONFIGS: lambda: _alter(version, names, incremental=True),
    }
    return made[api_key]()


RESPONSES: dict[int, tuple[Any, str]] = {
    CREATE_TOPICS: (CreateTopicsResponse, "topics"),
    DELETE_TOPICS: (DeleteTopicsResponse, "responses"),
    CREATE_PARTITIONS: (CreatePartitionsResponse, "results"),
    DELETE_RECORDS: (DeleteRecordsResponse, "topics"),
    ALTER_CONFIGS: (AlterConfigsResponse, "responses"),
    INCREMENTAL_ALTER_CONFIGS: (IncrementalAlterConfigsResponse, "responses"),
}
VERSIONS = [
    (api_key, version)
    for api_key in TOPIC_CHANGES
    for low, high in [version_range(api_key) or (0, -1)]
    for version in range(low, high + 1)
]


def _guard() -> ReservedTopic:
    return ReservedTopic(TOPIC, {CREATE_TOPICS: MutationQuota(LEDGER), DELETE_TOPICS: MutationQuota(LEDGER)})


def _ask(guard: ReservedTopic, api_key: int, version: int, body: bytes) -> Any:
    account: Account = LEDGER.account("u", "c")
    return finished(guard.request(AdminRequest(api_key, version, "u", "c", account, body), 0.0))


def _errors(api_key: int, version: int, outcome: Any) -> list[tuple[str | None, int]]:
    assert isinstance(outcome, Answer)
    cls, field = RESPONSES[api_key]
    reader = io.BytesIO(outcome.body)
    message = cls.decode(reader, version=version)
    assert not reader.read()  # nothing behind it
    found: list[tuple[str | None, int]] = []
    for one in getattr(message, field):
        name = one.resource_name if api_key in (ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS) else one.name
        inner = one.partitions if api_key == DELETE_RECORDS else [one]
        found += [(name, part.error_code) for part in inner]
    return found


@pytest.mark.parametrize(("api_key", "version"), VERSIONS)
def test_the_topic_is_refused_and_no_other(api_key: int, version: int) -> None:
    guard = _guard()
    names = ["orders", TOPIC, f"{TOPIC}-2"]
    body = encoded(_requests(api_key, version, names))
    wanted = [(name, REFUSED if name == TOPIC else NOT_ATTEMPTED) for name in names]
    if api_key == DELETE_RECORDS:
        wanted = [pair for pair in wanted for _ in range(2)]
    assert _errors(api_key, version, _ask(guard, api_key, version, body)) == wanted
    assert guard.refused.total() == 1
    for others in (["orders"], [f"{TOPIC}-2", "x"]):
        body = encoded(_requests(api_key, version, others))
        assert isinstance(_ask(guard, api_key, version, body), Forward | Ask)
    assert guard.refused.total() == 1


def test_a_broker_of_the_same_name_may_be_altered() -> None:
    guard = _guard()
    assert isinstance(_ask(guard, ALTER_CONFIGS, 2, encoded(_alter(2, [TOPIC], kind=4))), Forward)


def test_the_topic_is_not_deleted_by_its_id_either() -> None:
    guard, own, other = _guard(), uuid.uuid4(), uuid.uuid4()
    body = encoded(delete(6, [], [other, own]))
    for name, refused in ((TOPIC, True), ("orders", False)):
        asked = _ask(guard, DELETE_TOPICS, 6, body)
        assert isinstance(asked, Ask)
        cls = MetadataResponse.MetadataResponseTopic
        topics = [cls(version=asked.api_version, error_code=0, name=name, topic_id=own, partitions=[])]
        told = MetadataResponse(version=asked.api_version, throttle_time_ms=0, brokers=[], topics=topics)
        outcome = finished(asked.then(bytes(told.encode(version=asked.api_version)), 0.0))
        if refused:
            assert [code for _, code in _errors(DELETE_TOPICS, 6, outcome)] == [NOT_ATTEMPTED, REFUSED]
        else:
            assert isinstance(outcome, Forward | Ask)


@pytest.mark.parametrize(("api_key", "version"), VERSIONS)
def test_what_cannot_be_read_ends_the_connection(api_key: int, version: int) -> None:
    body = encoded(_requests(api_key, version, [TOPIC]))
    with pytest.raises(WireError):
        _ask(_guard(), api_key, version, body[: body.index(TOPIC.encode()) + len(TOPIC)])


def test_requests_of_very_many_entries_are_judged_in_slices() -> None:
    names = [*(f"t{number}" for number in range(5000)), TOPIC]
    for api_key in TOPIC_CHANGES:
        body = encoded(_requests(api_key, (version_range(api_key) or (0, 0))[1], names))
        version = (version_range(api_key) or (0, 0))[1]
        account = LEDGER.account("u", "c")
        work = _guard().request(AdminRequest(api_key, version, "u", "c", account, body), 0.0)
        slices, outcome, longest_ms = 0, None, 0.0
        while outcome is None:
            assert isinstance(work, Work)
            began = time.thread_time()
            outcome = work.advance(0.0)
            longest_ms = max(longest_ms, (time.thread_time() - began) * 1000.0 if slices else 0.0)
            slices += 1
        assert len(_errors(api_key, version, outcome)) >= 5001
        assert slices > 250
        assert longest_ms < 20.0  # half a second at once; a collection of the interpreter is possible
