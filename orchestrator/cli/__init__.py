"""The command line: the table of commands, their help, the console, and what turns errors into exit codes.

Only the console script `tpujob` and `python -m orchestrator.cli` enter here; nothing below imports this package. It parses and
renders: engine, ledger, clouds and workers are reached through `client`, and decisions are made there.
"""
