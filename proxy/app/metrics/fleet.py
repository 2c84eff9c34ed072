"""Metrics of limits that several instances share (docs/fleet.md)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from prometheus_client.core import GaugeMetricFamily, Metric

from proxy.app.fleet.member import Member
from proxy.app.metrics.families import by, counter, gauge
from proxy.core.interceptors.reserved_topic import ReservedTopic
from quota.fleet.shares import Shares


def fleet_families(member: Member | None, reserved: ReservedTopic | None, most: int) -> Iterator[Metric]:
    """Whether the fleet can be heard, and the shares of up to `most` groups in use here. Nothing without a fleet."""
    if reserved is not None:
        yield by(
            "kquota_fleet_refused_requests",
            "Refused requests of clients for the fleet's topic, by API.",
            "api",
            reserved.refused,
        )
    if member is None:
        return
    fleet, state, shares = member.fleet, member.exchange.state, member.shares
    ignored = fleet.ignored
    yield gauge("kquota_fleet_instances", "Known instances of the fleet, this one included.", fleet.known)
    yield gauge(
        "kquota_fleet_lost",
        "1 while the instance has lost contact with its fleet.",
        fleet.lost,
    )
    yield gauge("kquota_fleet_groups", "Counters of this instance with a fleet limit.", shares.count)
    records = {
        "sent": state.sent,
        "received": state.received,
        "stale": state.stale,
        "malformed": ignored.malformed,
        "other_version": ignored.other_version,
        "other_fleet": ignored.other_fleet,
        "bad_mac": ignored.bad_mac,
        "outdated": ignored.outdated,
        "repeated": fleet.view.repeated,
        "refused": fleet.view.refused,
    }
    yield by("kquota_fleet_records", "Records of the fleet's topic, by outcome.", "outcome", records)
    yield counter("kquota_fleet_sent_bytes", "Bytes of records published to the fleet's topic.", state.sent_bytes)
    yield counter("kquota_fleet_received_bytes", "Bytes of records read from the fleet's topic.", state.received_bytes)
    labels = ["kind", "user", "client_id"]
    share = GaugeMetricFamily("kquota_fleet_share", "This instance's share of a fleet limit.", labels=labels)
    usage = GaugeMetricFamily(
        "kquota_fleet_usage",
        "The fleet's usage of a limit, in the limit's unit (bytes/s, percent, partitions/s).",
        labels=labels,
    )
    sharing = GaugeMetricFamily("kquota_fleet_sharing", "Instances that use a fleet limit.", labels=labels)
    for group in islice(shares.active(), most):
        standing = shares.standing(group)
        if standing is not None:
            names = [group.kind.value, *group.key.tags]
            share.add_metric(names, standing.share)
            usage.add_metric(names, standing.usage)
            sharing.add_metric(names, standing.instances)
    yield from (share, usage, sharing)
    yield from _connection_families(shares, most)


def _connection_families(shares: Shares, most: int) -> Iterator[Metric]:
    labels = ["scope", "entity"]
    share = GaugeMetricFamily(
        "kquota_fleet_connection_share", "This instance's share of a fleet connection rate.", labels=labels
    )
    usage = GaugeMetricFamily(
        "kquota_fleet_connection_usage", "Connections per second accepted by the fleet.", labels=labels
    )
    for scope, name, standing in islice(shares.rates(), most):
        share.add_metric([scope.value, name], standing.share)
        usage.add_metric([scope.value, name], standing.usage)
    yield from (share, usage)
