"""`kquota run`: the parts of the sidecar put together, started in order and stopped in order."""
