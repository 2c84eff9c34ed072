"""Requests of administrators that are inspected whole: partition mutations and client quotas."""
