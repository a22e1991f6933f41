"""The tree of commands for typer: each is imported when it is called, or when its own help or completion is asked for."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import textwrap
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

from orchestrator import __version__
from orchestrator.cli import command_table
from orchestrator.cli.command_table import COMMANDS, GROUPS, children
from orchestrator.cli.console.console import Console
from orchestrator.cli.console.output import console
from orchestrator.cli.options import AFTER_DASHES, Argument, Option

HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}
PROGRAM = "tpujob"
DESCRIPTION = "Run training jobs on Cloud TPUs and never pay for a forgotten one."
EXAMPLES = (
    "tpujob run jobs/hello.yaml",
    "tpujob init --example mnist",
    "tpujob run --help  # arguments, options and examples of a command",
)
MAX_COMPLETION_HELP = 60
# Commands, and what they are called in another group or by other programs.
_ALSO = {"stop": "down", "up": "start create", "cancel": "kill", "list": "ls", "status": "ps"}
_ALSO |= dict.fromkeys(("down", "clear"), "delete remove rm")


class ExitCode(Exception):
    """What a command returned. `typer.Exit` cannot tell: 2 is Typer's code for usage errors and may be a job's own code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class LazyCommand(TyperCommand):
    """Stands for a command or a group of commands in the tree: name and summary are known, the rest is loaded."""

    def __init__(self, full_name: str) -> None:
        super().__init__(full_name.rpartition(" ")[2], short_help=COMMANDS[full_name].summary)
        self.full_name = full_name

    @functools.cached_property
    def loaded(self) -> Any:
        """The click command of it."""
        return _group(self.full_name) if COMMANDS[self.full_name].is_group else _command(self.full_name)

    def make_context(self, *args: Any, **extra: Any) -> Any:
        """Parse arguments with the command that this stands for."""
        return self.loaded.make_context(*args, **extra)


QUIET = "Print only results and what needs action. The log of a job is in `tpujob logs`."
VERBOSE = "Print every step, and every call to the API."
TIMESTAMPS = "Print the local time before each line of stderr and of a job's log."
PYDANTICS = "Value error, "  # what typer leaves of pydantic before the reason


class _Uniform:
    """What commands and groups have in common."""

    full_name = ""

    def get_params(self, ctx: Any) -> list[Any]:
        *own, help_option = super().get_params(ctx)  # type: ignore[misc]
        params = [*own, *output_options(), help_option]
        for param in params:
            if param.param_type_name == "argument":
                param.metavar = param.metavar or str(param.name).upper()  # the name in messages
                param.display_type_rich = lambda ctx: ""  # its name says it
            if not isinstance(param.get_runtime_param, functools.partial):
                param.get_runtime_param = functools.partial(_Conversion, param.get_runtime_param)
        return params

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples, each on its line."""
        examples = COMMANDS[self.full_name].examples if self.full_name else EXAMPLES
        if examples:
            with formatter.section("Examples"):
                formatter.write("".join(f"  {each}\n" for each in examples))

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        items: list[Any] = super().shell_complete(ctx, incomplete)  # type: ignore[misc]
        for item in items:
            if item.help:  # typer wraps a longer text, and fish takes its second line for another completion
                item.help = textwrap.shorten(item.help, MAX_COMPLETION_HELP, placeholder="…")
        return items


class _Command(_Uniform, TyperCommand):
    alone: Mapping[str, str] = {}  # options that may stand without a value, and what they mean then

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words up to `--`; those after it are the command to run, whatever they look like."""
        end = args.index("--") if "--" in args else len(args)
        command = next((each for each in self.params if each.metavar == AFTER_DASHES), None)
        if command is None:
            return self._parsed(ctx, _with_values(args[:end], self.alone) + args[end:])
        rest = self._parsed(ctx, _with_values(args[:end], self.alone))
        if (loose := ctx.params[command.name]) and not ctx.resilient_parsing:
            ctx.fail(f"Got unexpected words ({' '.join(loose)}): a command stands after `--`")
        ctx.params[command.name] = args[end + 1 :] or None
        return rest

    def _parsed(self, ctx: Any, args: list[str]) -> list[str]:
        """Of an unknown option, name those that begin with it: `--acc` is rather `--accelerator` than `--detach`."""
        try:
            return list(super().parse_args(ctx, args))
        except Exception as error:
            typed = getattr(error, "option_name", None)
            longer = [opt for param in self.params for opt in param.opts if typed and opt.startswith(typed)]
            if longer and hasattr(error, "possibilities"):
                error.possibilities = longer
            raise

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return `[OPTIONS]` and the arguments, in brackets those that may be left out."""
        arguments = [param for param in self.get_params(ctx) if param.param_type_name == "argument"]
        return ["[OPTIONS]", *map(_in_brackets, arguments)]


def _in_brackets(argument: Any) -> str:
    text = str(argument.metavar)
    if argument.required or text.startswith("["):
        return text
    return f"[{text}]..." if argument.nargs == -1 else f"[{text}]"


class _Group(_Uniform, TyperGroup):
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Of an unknown command, name the one that the word means elsewhere in tpujob."""
        try:
            return super().resolve_command(ctx, args)
        except Exception as error:
            meant = [name for name, words in _ALSO.items() if name in self.commands and args[0] in words.split()]
            if meant and hasattr(error, "message"):
                error.message = f"No such command {args[0]!r}. Did you mean {meant[0]!r}?"
            raise

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, those of tpujob itself in their groups. Nothing is cut at the width of the terminal."""
        for title, commands in ({"Commands": children(self.full_name)} if self.full_name else GROUPS).items():
            with formatter.section(title):
                formatter.write_dl([(name, each.summary) for name, each in commands.items() if " " not in name])


class _Conversion:
    """Convert a value only where there is something to convert: typer's `RuntimeParam` imports pydantic first (65 ms)."""

    def __init__(self, typers_own: Any) -> None:
        self._typers_own = typers_own

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        if value is None and param.nargs == 1 and not param.multiple:
            return None
        if param.type_descriptor.annotation == list[str]:
            return list(value or ()) or None  # every list of ours has None as its default
        annotation = param.type_descriptor.annotation
        if type(value) is annotation and not param.type_descriptor.is_ranged:
            return value
        if typing.get_origin(annotation) is Literal and value in typing.get_args(annotation):
            return value
        try:
            return self._typers_own().coerce(value, param=param, ctx=ctx)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix(PYDANTICS)
            raise


@functools.cache
def root() -> Any:
    """Return the click group of `tpujob`. Call it with `prog_name=PROGRAM`; it ends with SystemExit."""
    return _group("", completion=True, callback=_version)


def everything() -> dict[str, Any]:
    """Return the click commands and groups, all imported, by their full names; `""` is `tpujob` itself."""
    found = {"": root()}
    for name in COMMANDS:  # a group comes before its commands
        parent, _, last = name.rpartition(" ")
        found[name] = found[parent].commands[last].loaded
    return found


def _version(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def _print_version(given: bool) -> None:
    if given:
        print(f"tpujob {__version__}", flush=True)
        raise typer.Exit


@functools.cache
def output_options() -> list[Any]:
    """Return the options that every command has: they set up the console, and no function gets them."""

    def option(names: str, text: str, call: Callable[[Console], None]) -> Any:
        def set_up(value: bool) -> None:
            if value:
                call(console())

        return typer.Option(*names.split(", "), callback=set_up, expose_value=False, help=text)

    def declared(
        quiet: Annotated[bool, option("-q, --quiet", QUIET, Console.be_quiet)] = False,
        verbose: Annotated[bool, option("-v, --verbose", VERBOSE, Console.be_verbose)] = False,
        timestamps: Annotated[bool, option("--timestamps", TIMESTAMPS, Console.print_times)] = False,
    ) -> None:
        pass

    declared.__annotations__ = typing.get_type_hints(declared, localns=locals(), include_extras=True)
    app = _typer(add_completion=False)
    app.command()(declared)
    return list(typer.main.get_command(app).params)


def _group(full_name: str, callback: Any = lambda: None, completion: bool = False) -> Any:
    text = COMMANDS[full_name].summary if full_name else DESCRIPTION
    lists = bool(full_name and COMMANDS[full_name].function)  # without a command it lists what there is
    app = _typer(add_completion=completion, cls=_Group, no_args_is_help=not lists, help=text)
    app.callback(invoke_without_command=lists)(_alone(command_table.load(full_name)) if lists else callback)
    group: Any = typer.main.get_command(app)
    group.full_name = full_name
    for name in children(full_name):
        group.add_command(LazyCommand(f"{full_name} {name}".strip()))
    return group


def _alone(function: Callable[..., int | None]) -> Callable[..., None]:
    """Return the callback of a group that does this where no command follows."""
    declared = _declared(function, reads=True)

    @functools.wraps(declared)
    def callback(ctx: typer.Context, **kwargs: Any) -> None:
        if ctx.invoked_subcommand is None:
            declared(**kwargs)

    context = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    parameters = inspect.signature(declared).parameters.values()
    callback.__signature__ = inspect.Signature([context, *parameters])  # type: ignore[attr-defined]
    callback.__annotations__ = {"ctx": typer.Context, **declared.__annotations__}
    return callback


def _command(full_name: str) -> Any:
    app = _typer(add_completion=False)
    function = _declared(command_table.load(full_name), reads=COMMANDS[full_name].reads)
    app.command(full_name.rpartition(" ")[2], cls=_Command)(function)
    command: Any = typer.main.get_command(app)
    command.full_name = full_name
    command.alone = function.alone  # type: ignore[attr-defined]
    return command


def _with_values(words: list[str], alone: Mapping[str, str]) -> list[str]:
    """Give each option that stands alone the value that it means then."""
    return [
        f"{word}={alone[word]}" if word in alone and not after[:1].isdigit() else word
        for word, after in itertools.zip_longest(words, words[1:], fillvalue="")
    ]


def _declared(function: Callable[..., int | None], *, reads: bool) -> Callable[..., None]:
    """Return a function for typer: with its declarations in place of ours, and with ExitCode for the code returned.

    A parameter whose type is a dataclass stands for its fields. `reads`: see `Command.reads`.
    """
    parameters: list[inspect.Parameter] = []
    parts: dict[str, Any] = {}
    for each in _parameters(function):
        if dataclasses.is_dataclass(each.annotation):
            parts[each.name] = each.annotation
            parameters += _parameters(each.annotation)
        else:
            parameters.append(each)

    @functools.wraps(function)
    def command(**kwargs: Any) -> None:
        console().only_reads = reads
        for name, part in parts.items():
            kwargs[name] = part(**{each.name: kwargs.pop(each.name) for each in _parameters(part)})
        raise ExitCode(function(**kwargs) or 0)

    declared = [each.replace(annotation=_annotation(each.annotation)) for each in parameters]
    command.__signature__ = inspect.Signature(declared)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in declared}
    command.alone = {  # type: ignore[attr-defined]
        option.names[0] if option.names else f"--{each.name.replace('_', '-')}": option.alone
        for each in parameters
        if isinstance(option := _declaration(each.annotation), Option) and option.alone is not None
    }
    return command


def _parameters(function: Any) -> list[inspect.Parameter]:
    hints = typing.get_type_hints(function, include_extras=True)
    return [each.replace(annotation=hints[name]) for name, each in inspect.signature(function).parameters.items()]


def _declaration(hint: Any) -> Argument | Option | None:
    return next((each for each in getattr(hint, "__metadata__", ()) if isinstance(each, (Argument, Option))), None)


def _annotation(hint: Any) -> Any:
    ours = _declaration(hint)
    match ours:
        case Option():
            return Annotated[hint.__origin__, typer.Option(*ours.names, **ours.settings)]
        case Argument():
            return Annotated[hint.__origin__, typer.Argument(**ours.settings)]
        case None:
            return hint


def _typer(**settings: Any) -> typer.Typer:
    return typer.Typer(
        rich_markup_mode=None, pretty_exceptions_enable=False, context_settings=dict(HELP_OPTIONS), **settings
    )
