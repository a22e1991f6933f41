"""The commands about runs that exist.

The table of commands loads these modules by name. Each parses arguments, calls ` list, show, logs, compare:client.history`, renders the result and exits;
what it may import is in tests/unit/test_imports.py.
"""
