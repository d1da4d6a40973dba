"""Which environments exist, and the `galley` command."""
