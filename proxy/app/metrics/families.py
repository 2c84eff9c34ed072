"""Metric families: made from plain numbers, and written as text in small steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

PORTION = 50
"""Samples written before other tasks run."""


def gauge(name: str, text: str, value: float) -> Metric:
    """A gauge without labels."""
    return GaugeMetricFamily(name, text, value=float(value))


def counter(name: str, text: str, value: float) -> Metric:
    """A counter without labels."""
    return CounterMetricFamily(name, text, value=value)


def by(name: str, text: str, by: str, values: Mapping[str, int]) -> Metric:
    """A counter with one label."""
    family = CounterMetricFamily(name, text, labels=[by])
    for value in sorted(values):
        family.add_metric([value], values[value])
    return family


class _Family(Collector):
    """One family as a registry of its own, so that families can be written one by one."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        return [self._family]


def written(family: Metric) -> Iterator[bytes]:
    """A family as text, in pieces of about a millisecond."""
    samples = family.samples
    for start in range(0, max(len(samples), 1), PORTION):
        part = Metric(family.name, family.documentation, family.type)
        part.samples = samples[start : start + PORTION]
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Family(part))
        text = generate_latest(registry)
        yield text if start == 0 else text[text.index(b"\n", text.index(b"\n") + 1) + 1 :]  # HELP and TYPE once
