"""How a command ends with a code of its own."""

from __future__ import annotations


class Done(Exception):
    """Not `typer.Exit`: Typer ends with 2 for its own usage errors, and a job's exit code may be 2 as well."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code
