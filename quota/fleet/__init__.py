"""One limit for a whole fleet of sidecars: what each instance may use of it, by the records that all of them read.

Pure arithmetic, as the rest of `quota`: bytes and clock readings in, shares and bytes out. docs/fleet.md says what is
guaranteed, and why.
"""
