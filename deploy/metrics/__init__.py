"""Prometheus metrics: the data path only ever adds to plain integers, and they are gathered when Prometheus comes by.

The only package that knows prometheus_client. Every metric is described in docs/metrics.md. A scrape works in steps of
about a millisecond and lets traffic through in between; scrapes that come faster than one a second share one answer.
"""

from deploy.metrics.gather import CONTENT_TYPE, Exposition
from deploy.metrics.own import Status

__all__ = ["CONTENT_TYPE", "Exposition", "Status"]
