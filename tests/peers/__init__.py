"""The tests of other people's clients, run at a broker directly and through the sidecar, and compared test by test.

`make peer-suites`; docs/testing.md is about faults, this is about everything else that a client may do.
"""
