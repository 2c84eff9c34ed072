"""Kubernetes: the webhook that injects sidecars, the chart's generated files, manifests to read."""
