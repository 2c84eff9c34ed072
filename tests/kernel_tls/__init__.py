"""Kernel TLS: `checks` shows it where the kernel has it, `machine` is a virtual machine whose kernel does."""
