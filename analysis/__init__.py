"""PySpark jobs over exported usage: a second program, never imported by the sidecar."""
