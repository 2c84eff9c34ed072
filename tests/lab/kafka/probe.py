"""Tests whether a broker answers the Kafka protocol."""

from __future__ import annotations

import struct
from typing import NamedTuple

from tests.support.raw_client import ClosedByPeerError, RawClient


class ProbeError(Exception):
    """The peer does not answer as a Kafka broker does (yet)."""


class AdvertisedBroker(NamedTuple):
    node_id: int
    host: str
    port: int


def brokers_seen_by(host: str, port: int, *, timeout_s: float = 30.0) -> list[AdvertisedBroker]:
    from kafka.protocol.metadata import MetadataRequest

    try:
        with RawClient((host, port), "probe", timeout_s=timeout_s) as client:
            brokers = client.ask(MetadataRequest(version=1, topics=[])).message.brokers
    except (OSError, ClosedByPeerError, struct.error, ValueError, AssertionError) as error:
        raise ProbeError(f"{host}:{port}: {error}") from error
    return [AdvertisedBroker(one.node_id, one.host, one.port) for one in brokers]
