"""What connects `quota.fleet` with the world: the topic, and the task that keeps shares in force (docs/fleet.md)."""
