"""`kquota run`: the parts of the sidecar put together, started in order and ended in order."""
