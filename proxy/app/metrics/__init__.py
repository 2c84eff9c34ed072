"""What Prometheus scrapes: families made of the plain integers that the data path counts in.

The only package that imports prometheus_client. Every metric is described in docs/metrics.md. A scrape works in steps
of about a millisecond and lets traffic through in between; scrapes more frequent than one a second share one answer.
"""

from proxy.app.metrics.gather import CONTENT_TYPE, Exposition

__all__ = ["CONTENT_TYPE", "Exposition"]
