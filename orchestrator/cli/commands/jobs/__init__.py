"""The commands about jobs: run, submit, attach, collect, cancel, plan, init, schema.

The table of commands loads these modules by name. Each parses arguments, calls the client, renders the
events and the result, and exits; tests/unit/test_imports.py holds what they may import.
"""
