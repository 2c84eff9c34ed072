"""Requests of administrators that are judged whole: partition mutations and client quotas."""
