"""Grafana dashboards: the JSON files that people import, and the module that writes them."""
