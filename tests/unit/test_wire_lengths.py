"""Nothing reaches kio's decoder whose arrays claim more than the message can hold: it would end the process."""

import io
import random
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kio.serial import entity_reader, entity_writer

from proxy.core.interceptors.intercept import Work
from proxy.core.session.fetch import FetchShaper
from proxy.core.wire.frames import WireError
from proxy.core.wire.lengths import check_lengths
from proxy.core.wire.topics import CREATE_TOPICS, read_entries
from tests.support.session_tools import finished, kio_message
from tests.support.wire_tools import sample

MESSAGES = [
    *(("alter_client_quotas", version, kind) for version in (0, 1) for kind in ("request", "response")),
    *(("describe_client_quotas", version, kind) for version in (0, 1) for kind in ("request", "response")),
    *(("fetch", version, "request") for version in range(7, 16)),
    *(("create_topics", version, kind) for version in range(2, 8) for kind in ("request", "response")),
    *(("create_partitions", version, kind) for version in range(4) for kind in ("request", "response")),
    *(("delete_topics", version, kind) for version in range(1, 7) for kind in ("request", "response")),
    *(("metadata", version, "response") for version in (5, 12)),
]
HUGE = ["ffffffff0f", "ffffffff7f", "8080808010", "ffffffff07", "7fffffff", "00ffffff"]
"""Compact and plain lengths of arrays: gigabytes of pointers."""


def message_class(name: str, version: int, kind: str) -> Any:
    words = "".join(word.capitalize() for word in name.split("_"))
    return getattr(kio_message(name, version, kind), f"{words}{kind.capitalize()}")


@pytest.mark.parametrize("which", MESSAGES)
def test_every_kio_message_has_its_exact_length(which: tuple[str, int, str]) -> None:
    cls = message_class(*which)
    for seed in range(20):
        sink = io.BytesIO()
        entity_writer(cls)(sink, sample(cls, random.Random(seed)))
        body = sink.getvalue()
        check_lengths(cls, body)
        for cut in range(len(body)):
            with pytest.raises(WireError, match=r"."):
                check_lengths(cls, body[:cut])
        with pytest.raises(WireError, match="1 bytes too many"):
            check_lengths(cls, body + b"\0")


@pytest.mark.parametrize("which", MESSAGES)
@given(body=st.binary(max_size=80))
@example(body=b"")
def test_accepted_bodies_are_safe_for_kio(which: tuple[str, int, str], body: bytes) -> None:
    cls = message_class(*which)
    for claim in ["", *HUGE]:
        try:
            check_lengths(cls, bytes.fromhex(claim) + body)
        except WireError:
            continue
        with suppress(Exception):  # text that is no UTF-8, tags that it does not know; but it would abort the process
            entity_reader(cls)(bytes.fromhex(claim) + body, 0)


@pytest.mark.parametrize("claim", HUGE)
@pytest.mark.parametrize("version", [11, 12, 15])
def test_a_fetch_with_a_huge_claim_is_left_to_the_broker(claim: str, version: int) -> None:
    head = 4 * (version < 15) + 4 + 4 + 4 + 1 + 4 + 4
    assert FetchShaper._parse(bytearray(b"\0" * head + bytes.fromhex(claim) + b"\0" * 9), version) is None


@pytest.mark.parametrize("claim", HUGE)
def test_a_huge_claim_inside_a_topic_ends_the_connection_only(claim: str) -> None:
    topic = b"\x02t" + b"\0\0\0\1" + b"\0\1"  # name, partitions, replication factor; then assignments
    body = b"\x02" + topic + bytes.fromhex(claim) + b"\0" * 9
    with pytest.raises(WireError, match="cannot be read"):
        finished(Work(read_entries(CREATE_TOPICS, 7, body, lambda _topic: None, 0.0)))


def test_reads_any_negative_length_as_null() -> None:
    """As Kafka's generated classes do; a null that the schema forbids is refused as one."""
    cls = message_class("metadata", 5, "response")
    nobody = bytes(4) + bytes(4)  # throttle time, no brokers
    check_lengths(cls, nobody + b"\xff\xfe" + bytes(4) + bytes(4))  # cluster id, controller, no topics
    with pytest.raises(WireError, match="a required array is null"):
        check_lengths(cls, nobody + b"\xff\xff" + bytes(4) + b"\xff\xff\xff\xfe")
