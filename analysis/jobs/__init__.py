"""The reports. Each module has `COLUMNS` (what it reads besides the base) and `run(context) -> Report`."""
