"""The help texts: of tpujob itself from the table of commands, of a command from its parameters.

They are laid out here because `tpujob --help` is not to import typer, and because each version of typer writes usage
lines, types and defaults in another way. Nothing is cut at the width of the terminal: it is wrapped.
"""

import shutil
import textwrap
from typing import Any

from orchestrator.cli.command_table import COMMANDS, GROUPS, children

DESCRIPTION = "Run training jobs on Cloud TPUs and never pay for a forgotten one."
HELP = ("-h, --help", "Show this message and exit.")
OUTPUT_OF_COMMANDS = ("-q, -v, --timestamps", "Less output, more, or with times: `tpujob --help`.")
OUTPUT = (
    ("-q, --quiet", "Print only results and what needs action. The log of a job is in `tpujob logs`."),
    ("-v, --verbose", "Print every step, and every call to the API."),
    ("--timestamps", "Print the local time before each line of stderr and of a job's log."),
)
OPTIONS = (
    ("--version", "Print the version and exit."),
    ("--install-completion", "Install completion for the current shell."),
    ("--show-completion", "Show completion for the current shell, to copy it or customize the installation."),
)
EXAMPLES = (
    "tpujob run jobs/hello.yaml",
    "tpujob init --example mnist",
    "tpujob run --help  # arguments, options and examples of a command",
)
MAX_WIDTH, MIN_WIDTH, MAX_FIRST_COLUMN = 80, 40, 28

Rows = list[tuple[str, str]]


def of_tpujob() -> str:
    """Return the help of `tpujob` itself, the commands in their groups."""
    sections = {"Options": [*OUTPUT, *OPTIONS, HELP]}
    for title, commands in GROUPS.items():
        sections[title] = [(name, command.summary) for name, command in commands.items() if " " not in name]
    return _page("tpujob [OPTIONS] COMMAND [ARGS]...", DESCRIPTION, sections, EXAMPLES)


def of_group(name: str) -> str:
    """Return the help of a group of commands, such as `emulator`."""
    rows = [(child, command.summary) for child, command in children(name).items()]
    sections = {"Options": [OUTPUT_OF_COMMANDS, HELP], "Commands": rows}
    return _page(f"tpujob {name} [OPTIONS] COMMAND [ARGS]...", COMMANDS[name].summary, sections, [])


def of_command(name: str, command: Any) -> str:
    """Return the help of a click command, which ends with its examples."""
    sections = {"Arguments": arguments(command), "Options": [*options(command), OUTPUT_OF_COMMANDS, HELP]}
    usage = " ".join(["tpujob", name, *usage_pieces(command)])
    return _page(usage, command.help or "", sections, COMMANDS[name].examples)


def usage_pieces(command: Any) -> list[str]:
    """Return what follows the name of a command in its usage line."""
    return ["[OPTIONS]", *(_metavar(param) for param in command.params if param.param_type_name == "argument")]


def arguments(command: Any) -> Rows:
    """Return the arguments of a click command with their meanings."""
    found = [param for param in command.params if param.param_type_name == "argument" and not param.hidden]
    return [(_metavar(param), _meaning(param)) for param in found]


def options(command: Any) -> Rows:
    """Return the options of a click command with their meanings, without those that every command has."""
    rows = []
    for param in command.params:
        if param.param_type_name == "option" and not param.hidden:
            words = ", ".join(sorted(param.opts, key=lambda opt: len(opt) - len(opt.lstrip("-"))))
            if param.secondary_opts:
                words += f" / {', '.join(param.secondary_opts)}"
            rows.append((words if param.is_flag else f"{words} {_metavar(param)}", _meaning(param)))
    return rows


def _metavar(param: Any) -> str:
    """`[NAME]...` for an argument, `NAME` for the value of an option."""
    if param.param_type_name == "option":
        return str(param.metavar or max(param.opts, key=len).lstrip("-").replace("-", "_").upper())
    text = param.metavar or str(param.name).upper()
    if param.required or text.startswith("["):
        return str(text)
    return f"[{text}]..." if param.nargs == -1 else f"[{text}]"


def _meaning(param: Any) -> str:
    default = param.default
    shown = param.show_default and default is not None and not callable(default) and not isinstance(default, bool)
    return f"{param.help}  [default: {default}]" if shown else str(param.help or "")


def _page(usage: str, text: str, sections: dict[str, Rows], examples: tuple[str, ...] | list[str]) -> str:
    width = max(MIN_WIDTH, min(MAX_WIDTH, shutil.get_terminal_size().columns))
    lines = textwrap.wrap(f"Usage: {usage}", width, subsequent_indent=" " * 7, break_on_hyphens=False)
    for paragraph in text.split("\n\n"):
        lines += ["", *_wrapped(" ".join(paragraph.split()), width, "  ")]
    for title, rows in sections.items():
        if rows:
            lines += ["", f"{title}:", *_columns(rows, width)]
    if examples:
        lines += ["", "Examples:", *(f"  {example}" for example in examples)]
    return "\n".join(lines) + "\n"


def _columns(rows: Rows, width: int) -> list[str]:
    first = max((len(words) for words, _ in rows if len(words) <= MAX_FIRST_COLUMN), default=MAX_FIRST_COLUMN)
    indent = " " * (first + 4)
    lines: list[str] = []
    for words, meaning in rows:
        head = f"  {words}".ljust(len(indent))
        if len(words) > first:
            lines, head = [*lines, f"  {words}"], indent
        lines += _wrapped(meaning, width, head, indent) or [head.rstrip()]
    return lines


def _wrapped(text: str, width: int, head: str, indent: str | None = None) -> list[str]:
    lines = textwrap.wrap(
        text.replace("[default: ", "[default:\xa0"),  # on one line
        width,
        initial_indent=head,
        subsequent_indent=head if indent is None else indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace("\xa0", " ") for line in lines]
