"""Towards the brokers: names, connections, the sidecar's own login and its own requests."""
