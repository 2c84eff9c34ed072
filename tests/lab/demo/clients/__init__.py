"""The demo's clients: ordinary programs on ordinary libraries, each run as a process of its own.

`python -m tests.lab.demo.clients.<name> SPEC` (SPEC: a JSON object, see reporter.Spec) connects, says so, waits for one
line on stdin, works until it is stopped, and writes JSON lines on stdout. They know nothing of kquota: for them the
sidecar is the bootstrap server.
"""
