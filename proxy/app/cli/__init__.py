"""The `kquota` command and what its subcommands print."""
