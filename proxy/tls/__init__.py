"""TLS on both sides: contexts from files, certificates, handshakes, and a channel that is used like a socket."""
