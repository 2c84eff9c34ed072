"""What Prometheus scrapes (docs/metrics.md). A scrape lets traffic through about every millisecond; scrapes more
frequent than one a second share one answer."""
