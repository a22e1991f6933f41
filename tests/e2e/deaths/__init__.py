"""The command, a notebook or the guardian is killed, forked or gets a wrong clock: nothing stays billed."""
