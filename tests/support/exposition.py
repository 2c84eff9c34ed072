"""An exposition in which every family has a sample: what pages about metrics are compared with and made of."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from prometheus_client.core import Metric

from config.sections import FleetSection
from proxy.app.export.exporter import Exporter
from proxy.app.export.worker import Worker
from proxy.app.fleet.member import Exchange, Member
from proxy.app.metrics import own
from proxy.app.metrics.gather import Exposition
from proxy.app.sources.follow import Followed, Follower
from proxy.app.sources.quota_source import SourceState
from proxy.app.sources.security import Security
from proxy.app.sources.watch import ReloadState
from proxy.core.auth.identity import IdentityPolicy
from proxy.core.interceptors.reserved_topic import ReservedTopic
from proxy.core.telemetry.observer import Counters
from proxy.net.listen.server import Proxy
from proxy.net.settings import ProxySettings
from quota.connections import ConnectionEntry, ConnectionLimits, EntityType
from quota.entity import DEFAULT, Kind
from quota.ledger import Ledger
from quota.steps import whole
from quota.table import Entry, QuotaTable


async def everything() -> bytes:
    entries = [Entry(None, DEFAULT, 10.0, 10.0, 1.0, 1.0), Entry(None, "s", 1.0, mode="shadow")]
    ledger, counters = Ledger(QuotaTable(entries), smooth=False), Counters()
    for kind in Kind:
        ledger.charge(ledger.account("u", "c"), kind, 1000, 0)
    ledger.charge(ledger.account("u", "s"), Kind.PRODUCE, 1000, 0)
    ledger.note_broker_throttle(ledger.account("u", "c"), 5)
    ledger.note_throttle(ledger.account("u", "c"), Kind.PRODUCE, 5, queued=True)
    ledger.connections.admit("10.0.0.1", "u", 0)
    counters.connections.closed["client_closed"] = 1
    counters.parse_errors["tls_on_plain_port"] = 1
    counters.counted.add(0)
    counters.libraries.note("librdkafka/2.1", 500.0, ignored=True)
    counters.tls_handshakes["client"] = 1
    counters.tls_handshake_failures["client", "certificate"] = 1
    side: Any = SimpleNamespace(setting="listen.tls", expires_at_s=1.0)
    security = Security(side, None, IdentityPolicy(), Follower([Followed("listen.tls", [], list)]))
    reserved = ReservedTopic("kquota-fleet", {}, lambda: None)
    reserved.refused["DeleteTopics"] = 1
    proxy = Proxy(ProxySettings("127.0.0.1", 0, range(0), ()), ledger, counters)
    sink: Any = SimpleNamespace()
    export = Exporter(ledger, [Worker("files", sink, 1)], 10.0, {})

    def families() -> Iterator[Metric]:
        yield from own.source_families(SourceState(), {"denied": 1})
        yield from own.export_families(export)
        yield from own.broker_families(proxy)
        yield from own.security_families(security, counters)
        yield from own.fleet_families(_member(), reserved, 5)
        yield from own.own_families(proxy, ReloadState(), ledger, ready=True)

    metrics = Exposition(ledger, counters, max_groups=5, own=families)
    return await metrics.text(0)


def _member() -> Member:
    rates = ConnectionLimits([ConnectionEntry(EntityType.IP, "10.0.0.1", 10.0, scope="fleet")])
    ledger = Ledger(QuotaTable([Entry("u", None, producer_byte_rate=10, scope="fleet")], connections=rates))
    settings = FleetSection()
    keys: Any = SimpleNamespace(current=(b"k" * 32,))
    member = Member(settings, ledger, Exchange(settings, []), keys, lambda: 1000.0, "here")
    ledger.charge(ledger.account("u", "c"), Kind.PRODUCE, 1, 1000)
    ledger.connections.admit("10.0.0.1", None, 1000.0)
    whole(member.shares.steps(2000.0))
    return member
