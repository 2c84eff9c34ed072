"""The partition-mutation quota (KIP-599) on the wire: CreateTopics, DeleteTopics, CreatePartitions, and Metadata.

Each topic costs the partitions that are created or deleted. For clients that understand THROTTLING_QUOTA_EXCEEDED (see
`topics.STRICT_FROM`), topics are refused one by one and in order while the tokens are below zero: they are removed from
the request and added with that error to the broker's answer. Older clients get everything, and a delay.

A Metadata request lets the broker create the topics that it names and that do not exist. Each is charged. If the tokens
suffice for some only, kquota first sends a Metadata request that names those, and then the client's, which may create
none. The answer does not say whether the broker created a topic: each is charged once, until Metadata shows it.

What a request does not say is asked on the same connection just before it is forwarded, and the broker's answer to the
request itself then corrects the charge. Why not a cache: docs/adr/0008.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from contextlib import suppress
from itertools import filterfalse, islice
from typing import Final

from proxy.core.interceptors.intercept import AdminRequest, Ask, Decision, Forward, Outcome, Work, in_slices
from proxy.core.interceptors.mutation_request import EXISTS, MISSING, MutationRequest, RecentChanges
from proxy.core.wire import topics as wire
from proxy.core.wire.apis import METADATA
from proxy.core.wire.frames import WireError
from proxy.core.wire.lengths import SLICE, Slices
from proxy.core.wire.topics import CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS, MAX_TOPICS
from quota.entity import Kind
from quota.ledger import Account, Ledger

MUTATION_APIS: Final = (CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS, METADATA)
DEFAULT_COUNT_MS: Final = 60_000
"""How long a broker's default partition count is believed; every new topic created with it renews it."""
MAX_ASKED: Final = 10
"""Topics named when asking for the default count: one that may be created is enough."""


class MutationQuota:
    """Inspects the four requests, Metadata only of limited clients (an `intercept.Interceptor`). One for all
    connections to a cluster."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.recent = RecentChanges()

    def wants(self, api_key: int, account: Account) -> bool:
        """Metadata may create topics: of clients with a limit it is inspected; all others send it often."""
        return api_key != METADATA or self.ledger.is_limited(account, Kind.MUTATION)

    def request(self, request: AdminRequest, now_ms: float) -> Outcome:
        """See :meth:`proxy.core.interceptors.intercept.Interceptor.request`."""
        return Work((self._let_create if request.api_key == METADATA else self._judge)(request, now_ms))

    def _judge(self, request: AdminRequest, now_ms: float) -> Slices[Decision]:
        limited = self.ledger.is_limited(request.account, Kind.MUTATION)
        work = MutationRequest(self.ledger, self.recent, request)
        try:
            now_ms = yield from work.read(now_ms)
        except WireError:
            if limited:
                raise
            return Forward()  # the broker may refuse it
        if len(work.wanted) > MAX_TOPICS:
            return (yield from work.refuse_all()) if limited else Forward()
        if work.is_free:
            return Forward()
        if not limited:
            self._count(work, now_ms)
            return Forward()
        if request.api_key == CREATE_TOPICS:
            return (yield from self._create(work, now_ms))
        return (yield from self._look_up(work, now_ms))

    def _count(self, work: MutationRequest, now_ms: float) -> None:
        """Without a limit, the totals count what the request itself says, and 1 for each count that it does not
        give."""
        fallback = self.recent.default_count or 1 if work.request.api_key == CREATE_TOPICS else 1
        total = sum(topic.cost or fallback for topic in work.wanted if topic.counts)
        self.ledger.charge_no_throttle(work.request.account, Kind.MUTATION, total, now_ms)

    def _create(self, work: MutationRequest, now_ms: float) -> Slices[Decision]:
        without_count = [str(topic.name) for topic in work.wanted if topic.partitions is None and topic.counts]
        return (yield from self._with_default(without_count, lambda now_ms: self._create_counted(work, now_ms), now_ms))

    def _with_default(
        self, names: list[str], then: Callable[[float], Slices[Decision]], now_ms: float
    ) -> Slices[Decision]:
        """Go on when the default count is known, which new topics of these names get."""
        fresh = self.recent.default_count is not None and now_ms - self.recent.default_since_ms <= DEFAULT_COUNT_MS
        if not names or fresh:
            return (yield from then(now_ms))

        def counted(body: bytes, now_ms: float) -> Slices[Decision]:
            with suppress(WireError):  # the answer to the request itself has the error
                results, _, now_ms = yield from wire.read_results(CREATE_TOPICS, version, body, MAX_ASKED, now_ms)
                for result in results:
                    if result.partitions:
                        self.recent.learn_default(result.partitions, now_ms)
            return (yield from then(now_ms))

        version, question = wire.default_count_question(names[:MAX_ASKED])
        return Ask(CREATE_TOPICS, version, question, in_slices(counted))

    def _create_counted(self, work: MutationRequest, now_ms: float) -> Slices[Decision]:
        for number, topic in enumerate(work.wanted, 1):
            if topic.partitions is None:
                topic.cost = self.recent.default_count or 1
            if number % SLICE == 0:
                now_ms = yield
        if not work.strict or not work.may_refuse(now_ms):
            return (yield from work.decide(now_ms))

        def counted(body: bytes, now_ms: float) -> Slices[Decision]:
            described, now_ms = yield from wire.read_metadata(version, body, len(work.wanted), now_ms)
            existing = {topic.name for topic in described if topic.error in EXISTS}
            for number, topic in enumerate(work.wanted, 1):
                topic.counts = topic.counts and topic.name not in existing
                if number % SLICE == 0:
                    now_ms = yield
            return (yield from work.decide(now_ms))

        # There are too few tokens for all. Topics that already exist must not use up what is left, nor be asked to come
        # back later: programs that create topics "if missing" ask for them again at every start.
        version, question = yield from wire.metadata_question(work.names(), [], ids_wanted=False)
        return Ask(METADATA, version, question, in_slices(counted))

    def _let_create(self, request: AdminRequest, now_ms: float) -> Slices[Decision]:
        """A broker creates what a Metadata request names and does not exist."""
        asked, now_ms = yield from wire.read_asked(request.api_version, request.body, now_ms)
        if not asked.may_create:
            return Forward()
        if len(asked.found) > MAX_TOPICS:
            return Forward(asked.creating_none(None))
        names = list(dict.fromkeys(name for name, _ in asked.found if name))
        if not names:
            return Forward()
        missing: dict[str, None] = {}

        def counted(body: bytes, now_ms: float) -> Slices[Decision]:
            described, now_ms = yield from wire.read_metadata(version, body, len(asked.found), now_ms)
            for number, topic in enumerate(described, 1):
                if topic.error in EXISTS:
                    self.recent.see(topic.name)
                elif topic.error == MISSING and topic.name:
                    missing[topic.name] = None
                if number % SLICE == 0:
                    now_ms = yield
            new = list(islice(filterfalse(self.recent.is_paid, missing), MAX_ASKED))
            return (yield from self._with_default(new, charged, now_ms)) if new else Forward()

        def charged(now_ms: float) -> Slices[Decision]:
            new: list[str] = []
            for number, name in enumerate(missing, 1):
                if not self.recent.is_paid(name):
                    new.append(name)
                if number % SLICE == 0:
                    now_ms = yield
            count, refused = self.recent.default_count or 1, set(new)
            for number, name in enumerate(new, 1):
                if not self.ledger.charge_mutation(request.account, count, True, now_ms).accepted:
                    return _creating(missing.keys() - refused, refused, asked)
                self.recent.put(name, None, count, unseen=True)
                refused.discard(name)
                if number % SLICE == 0:
                    now_ms = yield
            return Forward()

        if asked.can_forbid:
            version, question = request.api_version, asked.creating_none(None)
        else:
            version, question = yield from wire.metadata_question(names, [], ids_wanted=False)
        return Ask(METADATA, version, question, in_slices(counted))

    def _look_up(self, work: MutationRequest, now_ms: float) -> Slices[Decision]:
        """Topics are deleted or grow: how many partitions they have is asked first."""

        def counted(body: bytes, now_ms: float) -> Slices[Decision]:
            described, now_ms = yield from wire.read_metadata(version, body, len(work.wanted), now_ms)
            now_ms = yield from work.look_up(described, now_ms)
            return (yield from work.decide(now_ms))

        with_ids = wire.may_give_ids(work.request.api_key, work.request.api_version)
        version, question = yield from wire.metadata_question(work.names(), work.ids(), ids_wanted=with_ids)
        return Ask(METADATA, version, question, in_slices(counted))


def _creating(created: Set[str], refused: Set[str], asked: wire.Asked) -> Decision:
    """Let a broker create some topics only, and then answer the request itself."""
    last = Forward(asked.creating_none(refused))
    if not created or not asked.can_forbid:
        return last
    return Ask(METADATA, asked.version, asked.naming(created), lambda _body, _now_ms: last)
