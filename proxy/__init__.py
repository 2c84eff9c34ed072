"""Bytes and connections: sessions as sans-IO state machines, and the thin shell around them that touches sockets.

The core (`wire`, `session`, `auth`, `interceptors`) has no sockets, tasks or clocks. The trio shell (`io`, `listen`,
`upstream`, `tls`) has all of them.

    client socket -> Session.on_client_bytes -> ledger -> requests in flight -> broker socket
    broker socket -> Session.on_broker_bytes -> matching request -> ledger -> patched head -> client socket, then mute
"""
