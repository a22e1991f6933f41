"""The commands about the guarantee: gc, install-gc, doctor, forget, drill.

The table of commands loads these modules by name. Each parses arguments, calls the client, renders the result and
exits; `drill` calls the package of that name. tests/unit/test_imports.py holds what they may import.
"""
