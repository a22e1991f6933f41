"""The commands about slices: up, down, stop, start, extend, ssh, status, offers.

The table of commands loads these modules by name. Each parses arguments, calls the client, renders the result and exits;
tests/unit/test_imports.py holds what they may import.
"""
