"""Metric families: made from plain numbers, and written as text in small steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

PORTION = 50


def gauge(name: str, text: str, value: float) -> Metric:
    """A gauge without labels."""
    return GaugeMetricFamily(f"kquota_{name}", text, value=float(value))


def counter(name: str, text: str, value: float) -> Metric:
    """A counter without labels."""
    return CounterMetricFamily(f"kquota_{name}", text, value=value)


Kind = type[CounterMetricFamily | GaugeMetricFamily]


def labelled(kind: Kind, name: str, text: str, labels: str, values: Mapping[Any, float]) -> Metric:
    """A family with these labels, whose names are separated by spaces: the value by each label's, or by several."""
    family = kind(f"kquota_{name}", text, labels=labels.split())
    for key, value in values.items():
        family.add_metric([key] if isinstance(key, str) else list(key), value)
    return family


def by(name: str, text: str, by: str, values: Mapping[str, int]) -> Metric:
    """A counter with one label."""
    return labelled(CounterMetricFamily, name, text, by, dict(sorted(values.items())))


@dataclass
class _Family(Collector):
    family: Metric

    def collect(self) -> Iterable[Metric]:
        return [self.family]


def written(family: Metric) -> Iterator[bytes]:
    """A family as text, in pieces of about a millisecond."""
    samples = family.samples
    for start in range(0, max(len(samples), 1), PORTION):
        part = Metric(family.name, family.documentation, family.type)
        part.samples = samples[start : start + PORTION]
        text = generate_latest(_Family(part))
        yield text if start == 0 else text[text.index(b"\n", text.index(b"\n") + 1) + 1 :]  # HELP and TYPE once
