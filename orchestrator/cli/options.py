"""How commands declare their parameters, and the options that several commands share.

`Option` and `Argument` are those of typer; importing typer takes longer than many a command, and `cli.typer_app` does it when
there is something to parse.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from orchestrator.api import jobs
from orchestrator.cli import completion
from orchestrator.errors import UserError
from orchestrator.text import filters
from orchestrator.text.names import for_display

if TYPE_CHECKING:
    from orchestrator.api.jobs.planning import JobRequest

T = TypeVar("T")
KEEP_ON_FAILURE = "30m"
AFTER_DASHES = "[-- COMMAND…]"  # the metavar of the argument that takes the words after `--`, and no others


class Option:
    """The declaration of an option: what `typer.Option` takes.

    `alone`: what the option means without a value; then a word after it is its value only if it begins with a digit.
    """

    def __init__(self, *names: str, alone: str | None = None, **settings: Any) -> None:
        self.names, self.alone, self.settings = names, alone, settings


class Argument:
    """The declaration of an argument: what `typer.Argument` takes."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings


Cloud = Annotated[
    str | None,
    Option(
        "--cloud",
        metavar="emulated|google",
        help="Which cloud; by default what is configured.",
        autocompletion=completion.clouds,
    ),
]
Project = Annotated[str | None, Option("--project", metavar="PROJECT", help="Google Cloud project id.")]
Owner = Annotated[
    str | None,
    Option("--owner", metavar="NAME", help="Of this owner, as `tpujob status` names them; by default yours."),
]
Json = Annotated[bool, Option("--json", help="Print JSON with a stable shape on stdout.")]
EventStream = Annotated[
    bool, Option("--json", help="Print events on stdout, one JSON object a line; the last one is the result.")
]
Filters = Annotated[
    list[str] | None,
    Option(
        "--filter",
        metavar="CONDITION",
        help="Only the rows for which it holds: state=fail*, cost>2, params.lr<=0.1, or a part of any value. May be repeated.",
    ),
]
RUN_HELP = "A run id (its first letters do) or a job's name."
RunName = Annotated[str, Argument(metavar="RUN", help=RUN_HELP, autocompletion=completion.runs)]
RunOrSweep = Annotated[
    str,
    Argument(
        metavar="RUN",
        help="A run id (its first letters do), or the name of a job or sweep.",
        autocompletion=completion.runs_and_sweeps,
    ),
]
RunOrNewest = Annotated[
    str | None, Argument(metavar="[RUN]", help=f"{RUN_HELP} Left out: the newest run.", autocompletion=completion.runs)
]
Runs = Annotated[
    list[str],
    Argument(
        metavar="RUN...",
        help="Run ids (the first letters do), names of jobs or sweeps.",
        autocompletion=completion.runs_and_sweeps,
    ),
]
Name = Annotated[str | None, Argument(help="The slice's name; by default yours.", autocompletion=completion.slices)]
WorkerOrAll = Annotated[str, Option("--worker", metavar="N|all", help="Worker index, from 0, or all of them.")]
LOGS_HELP = "Whose log to show: 0, a list (0,3) or all; by default all of up to 7 workers, and worker 0 of more."
Logs = Annotated[
    str | None,
    Option("--logs", metavar="0|all|N,M", help=f"{LOGS_HELP} Files have all.", autocompletion=completion.logs),
]
WatchNodes = Annotated[
    bool, Option("--watch-nodes", help="On a cluster, wait until it has deleted the nodes, 15 minutes at most.")
]
LogWorkers = Annotated[
    str | None,
    Option("--worker", metavar="0|all|N,M", help=f"{LOGS_HELP} JSON has all.", autocompletion=completion.logs),
]
Markdown = Annotated[bool, Option("--markdown", help="Print the table as Markdown.")]
KeepOnFailure = Annotated[
    str | None,
    Option(
        "--keep-on-failure",
        metavar="[DURATION]",
        alone=KEEP_ON_FAILURE,
        help=f"Hold the slice of a job or setup that fails ({KEEP_ON_FAILURE}), to look and to run again.",
    ),
]
Csv = Annotated[bool, Option("--csv", help="Print one line a run with every figure as it was measured.")]
Over = Annotated[
    list[str] | None,
    Option(
        "--over",
        metavar="PARAM",
        help="Show mean ± σ over the runs that differ only in this parameter, such as seed, or in a list of them (a,b).",
    ),
]


def only_those(rows: Iterable[tuple[Mapping[str, Any], T]], conditions: Sequence[str] | None) -> list[T]:
    """Return what comes with the rows for which all conditions of `--filter` hold. Raises UserError for one that none can meet.

    The keys of an inner mapping follow its own: `params.lr`. Any row has the keys of all.
    """
    flat = [(_flat(row), each) for row, each in rows]
    keys = {key for row, _ in flat for key in row}
    parsed = []
    for text in conditions or () if flat else ():
        try:
            parsed.append(filters.parse(text, keys))
        except ValueError as error:
            raise UserError(f"--filter `{for_display(text)}`: {error}") from None
    return [each for row, each in flat if filters.matches(parsed, row)]


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in row.items():
        found |= {f"{key}.{name}": each for name, each in value.items()} if isinstance(value, Mapping) else {key: value}
    return {key.lower(): value for key, value in found.items()}


@dataclass(frozen=True, slots=True)
class JobArguments:
    """The parameters of `run`, `submit` and `plan` that say which job, and what is different in this run.

    `cli.typer_app` declares each field as a parameter of the command. Each has the name that it has in JobRequest.
    """

    file: Annotated[
        Path | None, Argument(metavar="JOB.yaml", help="The job file.", autocompletion=completion.job_files)
    ] = None
    command: Annotated[
        list[str] | None,
        Argument(
            metavar=AFTER_DASHES,
            help="What to run in place of the file's command; without a file, in a copy of this directory, with what its "
            "requirements.txt (or pyproject.toml) names.",
        ),
    ] = None
    accelerator: Annotated[
        str | None, Option(metavar="TYPE", help="Accelerator type, such as v5e-8.", autocompletion=completion.types)
    ] = None
    zone: Annotated[
        str | None,
        Option(metavar="ZONE", help="Zone, region, a list of them (a,b) or any.", autocompletion=completion.places),
    ] = None
    spot: Annotated[bool | None, Option("--spot/--on-demand", help="Spot capacity, or not.")] = None
    env: Annotated[
        list[str] | None, Option(metavar="NAME[=VALUE]", help="Variable of the job; NAME alone is your own variable.")
    ] = None
    settings: Annotated[
        list[str] | None,
        Option("--set", metavar="KEY=VALUE", help="Any key of the job file, such as limits.max_cost=5."),
    ] = None
    name: Annotated[str | None, Option(metavar="NAME", help="The job's name.")] = None
    max_duration: Annotated[
        str | None, Option("--ttl", metavar="DURATION", help="The key limits.max_duration, such as 2h.")
    ] = None

    def request(self, keep_on_failure: str | None = None) -> JobRequest:
        """Return what the client takes. `keep_on_failure`: the option of commands that stay with the job."""
        return jobs.planning.JobRequest(**asdict(self), keep_on_failure=keep_on_failure)
