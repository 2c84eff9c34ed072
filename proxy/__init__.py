"""The data path: a sans-IO core (`wire`, `framing`, `session` with its two sides, `fetch`, `addresses`) and a thin trio
shell around it (`connection`, `server`, `admission`, `splice`, `cluster`). Sockets, tasks and clocks are the shell's.

    client socket -> session.client_bytes() -> ledger -> inflight -> broker socket
    broker socket -> session.broker_bytes() -> inflight match -> ledger -> patched head -> client socket, then mute
"""
