"""A corpus of real client work that must give the same results through the sidecar as without it.

`job` says what an item is; the other modules hold the items; `__main__` runs them in a process of its own, and
`connections` watches where that process connects to.
"""

from tests.corpus import admin, groups, java, records, share, transactions, wire
from tests.corpus.job import ITEMS, Entry, Job, plain

__all__ = ["ITEMS", "Entry", "Job", "admin", "groups", "java", "plain", "records", "share", "transactions", "wire"]
