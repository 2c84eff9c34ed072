"""Usage records: sampled from the ledger, delivered to files or a topic."""
