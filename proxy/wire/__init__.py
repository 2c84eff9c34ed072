"""Kafka's wire protocol as far as a quota needs it: positions in buffers, no I/O, no large copies."""
