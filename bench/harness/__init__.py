"""The test bed of the measurements: a sandbox with an emulator of its own, timed processes, and the page of results."""
