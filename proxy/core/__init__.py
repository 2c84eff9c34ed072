"""The sans-IO core: Kafka's bytes, sessions, logins, interceptors. No sockets, no clock of its own."""
