"""Metric families: made from plain numbers, and written as text in small steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

PORTION = 50


def gauge(name: str, text: str, value: float) -> Metric:
    """A gauge without labels."""
    return GaugeMetricFamily(f"kquota_{name}", text, value=float(value))


def counter(name: str, text: str, value: float) -> Metric:
    """A counter without labels."""
    return CounterMetricFamily(f"kquota_{name}", text, value=value)


def labelled(
    kind: type[CounterMetricFamily | GaugeMetricFamily],
    name: str,
    text: str,
    labels: str,
    values: Mapping[Any, float],
) -> Metric:
    """A family with these labels, whose names are separated by spaces: the value by each label's, or by several."""
    family = kind(f"kquota_{name}", text, labels=labels.split())
    for key, value in values.items():
        family.add_metric([key] if isinstance(key, str) else list(key), value)
    return family


def by(name: str, text: str, by: str, values: Mapping[str, int]) -> Metric:
    """A counter with one label."""
    return labelled(CounterMetricFamily, name, text, by, dict(sorted(values.items())))


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
