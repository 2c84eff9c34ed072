"""What kquota costs, compared with no proxy and with other proxies, in one run against one real broker.

`python -m benchmarks` (or `make bench`); docs/performance.md explains the figures. The parts:

    plan.py       how much of everything (full, --quick, tiny for the smoke test)
    variants.py   01-direct, 02-haproxy, ... : how each way to the broker is started and stopped
    scenarios.py  what is measured on each of them: produce, fetch, small requests, memory
    affinity.py   a core for the proxy alone, the others for broker and clients
    answerer.py   a peer in the broker's place that only answers (for the guard and idle connections)
    frames.py     whole requests and batches of records
    rawclient.py  a small wire client: open loop at a fixed rate, closed loop, idle connections
    javatools.py  Kafka's own performance tools and what they print
    procstat.py   CPU time and memory of processes, the machine's description
    stats.py      percentiles, ratios within a round, medians over rounds
    runner.py     the run: interleaving, time limit, everything stopped for certain
    report.py     terminal table, JSON, Markdown
"""
