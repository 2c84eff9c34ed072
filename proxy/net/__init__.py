"""Sockets: the event loop, connection pairs, TLS, listeners, and connections to brokers."""
