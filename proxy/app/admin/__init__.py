"""The admin port of a running sidecar: metrics, health, explanations, the page."""
