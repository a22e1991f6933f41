"""`tpujob compare`: the figures of several runs side by side."""

from orchestrator.cli.comparison import print_comparison
from orchestrator.cli.console import open_session
from orchestrator.cli.options import Csv, Json, Markdown, Over, Runs
from orchestrator.errors import UserError


def compare(
    runs: Runs, over: Over = None, as_json: Json = False, as_markdown: Markdown = False, as_csv: Csv = False
) -> None:
    """Compare runs: seconds in all, per iteration and per epoch with their spread, accuracy, dollars.

    With --over seed, runs that differ only in that parameter are one group: how many there are, the mean of each figure with
    its sample standard deviation, and what they cost together. Only runs that succeeded are averaged.
    """
    if as_json + as_markdown + as_csv > 1:
        raise UserError("--json, --markdown and --csv exclude each other")
    names = [name for text in over or () for name in text.split(",")]
    session = open_session()
    print_comparison(session, runs, names, as_json=as_json, as_markdown=as_markdown, as_csv=as_csv)
