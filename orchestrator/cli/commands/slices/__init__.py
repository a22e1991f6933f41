"""The commands about a held slice.

The table of commands loads these modules by name. Each parses arguments, calls ` up, down, stop, start, extend, ssh, status, offers:client.slices`, renders the result and exits;
what it may import is in tests/unit/test_imports.py.
"""
