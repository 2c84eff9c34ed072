"""Can a client get more than its quota? Attacks on a running sidecar in front of a real broker: `make evasion`.

`rows` names the attacks, `frames` and `logins` are their bytes, `attackers` carries them out in a process of its own,
`neighbour` is an honest client next to them, `honest` are six libraries far above their limits, `stage` has broker and
sidecars, `arithmetic` says what counts, `report` writes the tables (docs/evasion.md has a summary).
"""
