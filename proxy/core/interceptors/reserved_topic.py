"""One topic that clients may neither use nor change: the fleet's.

Requests that would change it are answered here. Those that read, write or move records are forwarded as they come, and
the connection ends where one names the topic: a broker does not act on a request that has not come whole. So they are
never kept, and records are not looked at. The session hides the topic in Metadata.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from proxy.core.errors import CloseReason, SessionError
from proxy.core.interceptors.intercept import (
    AdminRequest,
    Answer,
    Ask,
    Decision,
    Forward,
    Interceptor,
    Interceptors,
    Outcome,
    Work,
    in_slices,
)
from proxy.core.wire import schema
from proxy.core.wire import topics as wire
from proxy.core.wire.apis import METADATA, api_name
from proxy.core.wire.lengths import Slices
from proxy.core.wire.primitives import Buffer
from proxy.core.wire.stream import StreamWalk
from proxy.core.wire.throttle import by_version
from proxy.core.wire.topic_changes import TOPIC_CHANGES, Change, read_changes, refusal
from quota.ledger import Account

_WALKS: Final = by_version(schema.TOPIC_WALKS)


class ReservedTopic:
    """Refuses what names the topic, and passes all else on to the next interceptor, if there is one."""

    def __init__(self, topic: str, others: Interceptors, topic_id: Callable[[], bytes | None]) -> None:
        """`topic_id()` is the topic's id, as far as it is known."""
        self._topic = topic
        self.name = topic.encode()
        self._topic_id = topic_id
        self._others = others
        self.refused: Counter[str] = Counter()
        """Requests by the API's name."""

    @property
    def interceptors(self) -> Mapping[int, Interceptor]:
        """The others, with this one before them."""
        return {**self._others, **dict.fromkeys(TOPIC_CHANGES, self)}

    def wants(self, _api_key: int, _account: Account) -> bool:
        """See :meth:`proxy.core.interceptors.intercept.Interceptor.wants`."""
        return True

    def request(self, request: AdminRequest, now_ms: float) -> Outcome:
        """See :meth:`proxy.core.interceptors.intercept.Interceptor.request`."""
        if self.name not in request.body and not wire.may_give_ids(request.api_key, request.api_version):
            return self._pass(request, now_ms)
        return Work(self._judge(request, now_ms))

    def look(self, api_key: int, api_version: int, body: Buffer, is_whole: bool) -> StreamWalk | None:
        """A request whose body begins so, or is this whole. Returns what looks at the rest, if that is necessary.
        Versions that are not in the table pass. Raises WireError if it cannot be parsed, SessionError if refused."""
        program = _WALKS.get(api_key << 16 | api_version)
        if program is None:
            return None
        piece, topic_id = bytes(body), self._topic_id()
        if is_whole and self.name not in piece and (topic_id is None or topic_id not in piece):
            return None

        def named(topic: bytes) -> None:
            if topic in (self.name, topic_id):
                self.refused[api_name(api_key)] += 1
                text = f"{api_name(api_key)} names topic {self._topic}, which belongs to kquota"
                raise SessionError(CloseReason.RESERVED_TOPIC, text)

        walk = StreamWalk(program, named)
        walk.see(piece)
        return None if is_whole else walk

    def _judge(self, request: AdminRequest, now_ms: float) -> Slices[Decision]:
        changes, now_ms = yield from read_changes(request.api_key, request.api_version, request.body, now_ms)
        if any(change.topic == self._topic for change in changes):
            return (yield from self._refuse(request, changes, None))
        ids = [one.topic_id for one in changes if one.topic is None and one.topic_id is not None]
        if ids:
            return (yield from self._ask(request, changes, list(dict.fromkeys(ids))))
        return (yield from self._passed(request, now_ms))

    def _ask(self, request: AdminRequest, changes: list[Change], ids: list[uuid.UUID]) -> Slices[Decision]:
        """Ask the broker which topics these ids are, as far as the client may know."""

        def judged(body: bytes, now_ms: float) -> Slices[Decision]:
            described, now_ms = yield from wire.read_metadata(version, body, len(ids), now_ms)
            for topic in described:
                if topic.name == self._topic:
                    return (yield from self._refuse(request, changes, topic.topic_id))
            return (yield from self._passed(request, now_ms))

        version, question = yield from wire.metadata_question([], ids, ids_wanted=True)
        return Ask(METADATA, version, question, in_slices(judged))

    def _refuse(self, request: AdminRequest, changes: list[Change], topic_id: uuid.UUID | None) -> Slices[Decision]:
        self.refused[api_name(request.api_key)] += 1
        refused = [
            change.topic == self._topic or (topic_id is not None and change.topic_id == topic_id) for change in changes
        ]
        text = f"topic {self._topic} belongs to kquota and cannot be changed through it"
        return Answer((yield from refusal(request.api_key, request.api_version, changes, refused, text)))

    def _passed(self, request: AdminRequest, now_ms: float) -> Slices[Decision]:
        outcome = self._pass(request, now_ms)
        return (yield from outcome.steps) if isinstance(outcome, Work) else outcome

    def _pass(self, request: AdminRequest, now_ms: float) -> Outcome:
        other = self._others.get(request.api_key)
        return Forward() if other is None else other.request(request, now_ms)
