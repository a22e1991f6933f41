"""Writes what the docs say about the commands out of the app itself: docs/cli.md, and the exit codes in README.md.

Run it (`python docs/cli_reference.py`) after changing a command, an option or an exit code; a test fails until somebody does.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from orchestrator.cli.app import app

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- exit codes: written by docs/cli_reference.py -->", "<!-- end of exit codes -->"

HEAD = """# The commands

*Written by `python docs/cli_reference.py` out of the app; `tpujob COMMAND --help` says the same.*

stdout is data, stderr is talk. Commands that read take `--json`. Progress is animated on a terminal only; `NO_COLOR` is
respected. Every command but `plan`, `forget`, `emulator` and `drill` also finishes teardowns that an earlier one left
unproven; `gc` does so at its end, and not in a dry run.
"""

EXIT_CODES = {
    "0": "It worked, and what had to be released is proven absent.",
    "1-63": "The job's own exit code (a larger one becomes 63).",
    "64": "The request is wrong: an option, the job file, the settings, or the API refuses it. Nothing was created.",
    "65": "An artifact is missing or damaged, or was refused; or results are not at home yet (`tpujob collect`).",
    "69": "The cloud cannot: no capacity in any zone that was asked for, a quota, or no answer for too long.",
    "70": "A bug in tpujob, or an answer of the API that it does not understand.",
    "71": "The slice was lost (preempted, deleted by somebody else), or a worker could not be reached.",
    "74": "A detached run was refused, because its slice could not be trusted to delete itself. It is proven absent.",
    "75": "**A teardown is not proven, or cannot be ruled out: something may still be billed.** Outranks every other code.",
    "77": "No usable credentials, or a permission is missing.",
    "124": "The job reached `limits.max_duration` and was stopped.",
    "128+n": "Interrupted by signal n (130 is Ctrl-C, 143 SIGTERM); what had to be released is proven absent.",
}


def page_text() -> str:
    root = typer.main.get_command(app)
    commands = "\n".join(_section(name, command) for name, command in _walk("tpujob", root))
    return f"{HEAD}\n{commands}\n## Exit codes\n\n{exit_codes()}"


def exit_codes() -> str:
    rows = [f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items()]
    return "\n".join(["| code | meaning |", "|---|---|", *rows, ""])


def readme_text(page: str) -> str:
    """The page with its table of exit codes renewed, and everything else as it was."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{exit_codes()}{END}{after}"


def _walk(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Every command under its full name. A group has nothing to say beyond its commands."""
    children = getattr(command, "commands", {})
    if not children:
        yield name, command
    for child_name, child in children.items():
        yield from _walk(f"{name} {child_name}", child)


def _section(name: str, command: Any) -> str:
    context = command.make_context(name, [], resilient_parsing=True)
    usage = " ".join([name, *(piece for piece in command.collect_usage_pieces(context) if piece != "[OPTIONS]")])
    records = [record for param in command.params if (record := param.get_help_record(context)) is not None]
    table = [f"| `{_cell(words)}` | {_cell(meaning)} |" for words, meaning in records]
    head = ["| argument or option | meaning |", "|---|---|"] if table else []
    return "\n".join([f"## {name}", "", f"`{usage}`", "", command.help, "", *head, *table, *([""] if table else [])])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    (ROOT / "docs" / "cli.md").write_text(page_text(), encoding="utf-8")
    readme = ROOT / "README.md"
    readme.write_text(readme_text(readme.read_text(encoding="utf-8")), encoding="utf-8")
