"""Bytes and connections: sessions as sans-IO state machines, and the thin shell around them that touches sockets.

The core (`wire`, `session`, `auth`, `interceptors`) has no sockets, tasks or clocks. The trio shell (`io`, `listen`,
`upstream`, `tls`) has all of them.

    client socket -> session.requests.take() -> ledger -> requests in flight -> broker socket
    broker socket -> session.responses.take() -> matching request -> ledger -> patched head -> client socket, then mute
"""
