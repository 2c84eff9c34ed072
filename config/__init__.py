"""Files to values: the configuration, validated, and whether it changed."""
