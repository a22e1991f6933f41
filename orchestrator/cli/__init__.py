"""The command line: the table of commands, their help, the console, and what turns errors into exit codes.

Only the console script `tpujob` and `python -m orchestrator.cli` enter here; nothing below imports this package. A command
parses arguments, makes one call of the client (`api/command_line.py`) and renders the result.
"""
