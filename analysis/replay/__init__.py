"""Quotas replayed over arrays, in NumPy and without Spark: what executors run for `whatif` (ADR 0014)."""
