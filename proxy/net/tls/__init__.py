"""TLS on both sides: contexts from files, certificates, handshakes, and a channel that is used like a socket."""

from quota.compiled import activate

activate(__path__, __name__)
