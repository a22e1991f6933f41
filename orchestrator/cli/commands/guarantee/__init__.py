"""The commands about the guarantee.

The table of commands loads these modules by name. Each parses arguments, calls ` gc, install-gc, doctor, forget, drill:client.guarantee`, renders the result and exits;
what it may import is in tests/unit/test_imports.py.
"""
