"""The exit code of a command, raised from wherever the command ends."""

from __future__ import annotations


class ExitCode(Exception):
    """End the command with `code`. `typer.Exit` cannot: 2 is Typer's code for usage errors and may be a job's own code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code
