"""Fetch requests under a quota: answered here when the group is over it, lowered when it still has some left.

The delicate part is the incremental fetch session (KIP-227). Client and broker each count its epochs, and a request
names only the partitions that changed since the last one. If we answer such a request ourselves, the broker misses an
epoch and the changes. So for each session we remember by how many epochs the broker lags and which changes it has not
seen, and correct both in the next request that is forwarded.

A session names its topics either by name (up to version 12) or by id (from 13 on, KIP-516) as long as it lives. A
broker answers a request of the other kind with FETCH_SESSION_TOPIC_ID_ERROR, and counts no epoch for it. So such a
request adds nothing to what the broker has missed, and goes to the broker with the broker's epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from dataclasses import fields as fields_of
from importlib import import_module
from typing import Any, Final

from kio.serial import entity_reader

from proxy.core.wire.bodies import class_of, encoded
from proxy.core.wire.lengths import check_lengths
from proxy.core.wire.primitives import INT32
from proxy.core.wire.requests import FetchFields

FIRST_SESSION_VERSION: Final = 7
FIRST_TOPIC_ID_VERSION: Final = 13
NEWEST_BODY_VERSION: Final = 15
"""Request bodies of consumers are the same from here on (`proxy.core.wire.responses.fetch_version_upstream`)."""
MAX_SESSIONS: Final = 8
"""Sessions remembered per connection. Clients use one per broker connection; more suggests abuse."""
MAX_MISSED_PARTITIONS: Final = 1000
"""Changes of partitions per session that are remembered until a request carries them, which is written at once, in 3
ms. With so many no further request is answered here; with more, the client has to start over with a full fetch."""
_PARTITION_BYTES: Final = 33
MAX_BYTES: Final = MAX_MISSED_PARTITIONS * _PARTITION_BYTES
"""Of a request that is answered here; it is parsed at once, in 2 ms."""


@dataclass(slots=True)
class _Missed:
    """What the broker does not know yet about one session."""

    topic_ids: bool
    """Its topics have ids, not names."""
    epochs: int = 0
    """Requests of this session answered here: the broker's epoch is this much lower than the client's."""
    partitions: dict[tuple[Any, int], Any] = field(default_factory=dict)
    """(topic name or id, partition) -> FetchPartition as the client last named it."""
    forgotten: set[tuple[Any, int]] = field(default_factory=set)

    @property
    def count(self) -> int:
        return len(self.partitions) + len(self.forgotten)


def _topic_key(topic: Any) -> Any:
    """Topics have a name up to v12 and an id from v13 on."""
    return topic.topic_id if hasattr(topic, "topic_id") else topic.topic


class FetchShaper:
    """The fetch sessions of one connection, as far as quotas have affected them."""

    __slots__ = ("missed",)

    def __init__(self) -> None:
        self.missed: dict[int, _Missed] = {}
        """By session id, the requests that were answered here; while it is empty, nothing has to be corrected."""

    def take_over(self, fields: FetchFields, body: memoryview | bytearray | None, version: int) -> int | None:
        """Answer this request here instead of forwarding it.

        `body` is the whole request body, None if it has not arrived whole. Returns the session id for the empty
        response, as in the broker (FetchSession.scala): the session's own for incremental fetches; 0 for sessionless
        and full ones (so that no session is created), and where topics have ids and the session's have names, or the
        other way round. None: it must be forwarded, as its content could not be carried over.
        """
        if version < FIRST_SESSION_VERSION or fields.session_epoch <= 0 or fields.session_id == 0:
            self.missed.pop(fields.session_id, None)
            return 0
        if body is None or len(body) > MAX_BYTES:
            return None
        request = self._parse(body, version)
        if request is None:
            return None
        missed = self.missed.get(fields.session_id)
        if missed is None:
            if len(self.missed) >= MAX_SESSIONS:
                return None
            missed = self.missed[fields.session_id] = _Missed(version >= FIRST_TOPIC_ID_VERSION)
        elif missed.topic_ids != (version >= FIRST_TOPIC_ID_VERSION):
            return 0
        if missed.count > MAX_MISSED_PARTITIONS:
            return None  # later ones go to the broker until it has seen these changes
        missed.epochs += 1
        _merge(missed, request)
        return fields.session_id

    def forward(
        self, fields: FetchFields, body: memoryview | bytearray | None, version: int, max_bytes: int | None
    ) -> bytes | None:
        """The new body of a request that is forwarded, if it must carry earlier changes; otherwise None."""
        if fields.session_epoch <= 0:  # the session is closed or restarted
            self.missed.pop(fields.session_id, None)
            return None
        missed = self.missed.get(fields.session_id)
        if missed is None or not missed.count or missed.topic_ids != (version >= FIRST_TOPIC_ID_VERSION):
            return None
        request = None
        if body is not None and missed.count + len(body) // _PARTITION_BYTES <= MAX_MISSED_PARTITIONS:
            request = self._parse(body, version)
        if request is None:
            # What the broker missed cannot be added to this request. It keeps the client's own epoch: the broker
            # answers INVALID_FETCH_SESSION_EPOCH, and the client starts over with a full fetch in a new session.
            del self.missed[fields.session_id]
            return None
        _merge(missed, request)
        module = import_module(type(request).__module__)
        request = replace(
            request,
            session_epoch=fields.session_epoch - missed.epochs,
            max_bytes=_lowered(request.max_bytes, max_bytes),
            min_bytes=_lowered(request.min_bytes, _lowered(request.max_bytes, max_bytes)),
            topics=_grouped(_of_version(missed.partitions, module.FetchPartition), module.FetchTopic),
            forgotten_topics_data=_grouped(dict.fromkeys(missed.forgotten), module.ForgottenTopic),
        )
        missed.partitions.clear()
        missed.forgotten.clear()
        return encoded(request)

    def patch_epoch(self, buf: bytearray | memoryview, fields: FetchFields) -> None:
        """Set the broker's epoch, in place."""
        if fields.session_epoch > 0:
            missed = self.missed.get(fields.session_id)
            if missed is not None:
                INT32.pack_into(buf, fields.session_epoch_at, fields.session_epoch - missed.epochs)

    @staticmethod
    def _parse(body: memoryview | bytearray, version: int) -> Any | None:
        """A FetchRequest, or None if its content is not in its schema (then it is forwarded unchanged)."""
        cls, raw = class_of("fetch", min(version, NEWEST_BODY_VERSION), "request"), bytes(body)
        try:
            check_lengths(cls, raw)
            request, used = entity_reader(cls)(raw, 0)
        except Exception:  # kio raises many kinds; in any case the broker is to reject the request, not we
            return None
        return request if used == len(raw) else None


def _lowered(value: int, limit: int | None) -> Any:
    return value if limit is None else min(value, max(limit, 1))


def _merge(missed: _Missed, request: Any) -> None:
    """Add `request`'s changes to those that the broker has missed; the latest change wins."""
    for topic in request.topics:
        key = _topic_key(topic)
        for partition in topic.partitions:
            missed.partitions[key, partition.partition] = partition
            missed.forgotten.discard((key, partition.partition))
    for topic in request.forgotten_topics_data:
        key = _topic_key(topic)
        for index in topic.partitions:
            missed.partitions.pop((key, index), None)
            missed.forgotten.add((key, index))


def _of_version(partitions: dict[tuple[Any, int], Any], partition_class: Any) -> dict[tuple[Any, int], Any]:
    """The partitions as the version of `partition_class` names them; a version may lack fields of another."""
    names = [one.name for one in fields_of(partition_class)]
    return {
        key: value
        if type(value) is partition_class
        else partition_class(**{name: getattr(value, name) for name in names if hasattr(value, name)})
        for key, value in partitions.items()
    }


def _grouped(partitions: dict[tuple[Any, int], Any], topic_class: Any) -> tuple[Any, ...]:
    """Group by topic, first come first: (topic, partition) -> value becomes one `topic_class` per topic."""
    by_topic: dict[Any, list[Any]] = {}
    for (topic, index), value in partitions.items():
        by_topic.setdefault(topic, []).append(index if value is None else value)
    name = "topic_id" if "topic_id" in topic_class.__dataclass_fields__ else "topic"
    return tuple(topic_class(**{name: topic, "partitions": tuple(values)}) for topic, values in by_topic.items())
