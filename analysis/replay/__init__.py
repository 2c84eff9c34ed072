"""Quotas replayed over arrays of intervals: the arithmetic of `whatif` in NumPy, without Spark (ADR 0033)."""
