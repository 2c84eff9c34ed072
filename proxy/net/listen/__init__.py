"""Towards the clients: listening sockets, which connections are served, and the graceful shutdown."""
