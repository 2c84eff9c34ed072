"""Kubernetes: the webhook that injects sidecars, and manifests to read."""
