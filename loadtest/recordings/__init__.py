"""Request logs, galley's own and other tools', read as a `Run`."""
