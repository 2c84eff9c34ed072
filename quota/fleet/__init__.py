"""One limit for several instances: the split, records, what was read and claimed, shares for the ledger.

Pure arithmetic, as the rest of `quota`: bytes and clock readings in, shares and bytes out. docs/fleet.md states what is
guaranteed, and why.
"""
