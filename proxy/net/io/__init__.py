"""Sockets and the event loop: waiting, reading, sending, splicing, and the two pumps of a connection pair."""

from quota.compiled import activate

activate(__path__, __name__)
