"""Where kquota meets the world: CLI, wiring, metrics, admin HTTP, demo."""
