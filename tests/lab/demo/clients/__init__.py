"""The demo's clients: ordinary programs on ordinary libraries, each run as a process of its own."""
