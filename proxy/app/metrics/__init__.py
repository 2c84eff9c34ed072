"""What Prometheus scrapes (docs/metrics.md). A scrape lets traffic through about every millisecond; scrapes more
frequent than one a second share one answer."""

from proxy.app.metrics.gather import CONTENT_TYPE, Exposition

__all__ = ["CONTENT_TYPE", "Exposition"]
