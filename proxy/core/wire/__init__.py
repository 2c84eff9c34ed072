"""Kafka's wire protocol as far as a quota needs it: positions in buffers, no I/O, no large copies."""

from quota.compiled import activate

activate(__path__, __name__)
