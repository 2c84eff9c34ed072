"""A corpus of real client work that must give the same results through the sidecar as without it."""

from tests.corpus import admin, groups, java, records, share, transactions, wire
from tests.corpus.job import ITEMS, Entry, Job, plain

__all__ = ["ITEMS", "Entry", "Job", "admin", "groups", "java", "plain", "records", "share", "transactions", "wire"]
