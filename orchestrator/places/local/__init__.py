"""This machine: a process is the worker. There is no slice, no lease and no price."""
