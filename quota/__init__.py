"""The arithmetic of quotas: who is charged, what the limit is, what the rate is, how long to wait.

Standard library only, no clocks, no input or output: callers pass the time in (milliseconds of any monotonic clock).
Start reading at :mod:`quota.ledger`; :mod:`quota.entity` and :mod:`quota.table` say which clients share a counter,
:mod:`quota.rate` and :mod:`quota.bucket` hold Kafka's two ways of counting, :mod:`quota.pacing` is our own addition.
"""

from quota.compiled import activate

activate(__path__, __name__)
