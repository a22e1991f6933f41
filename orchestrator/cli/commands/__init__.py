"""The commands, one package for each group of the help; `cli/command_table.py` lists them.

Commands parse arguments and render; they reach everything else through the client alone. Only the
command tree (`cli.typer_app`) imports them, each when it is called.
"""
