"""`tpujob list`: the runs, newest first."""

from __future__ import annotations

from typing import Any

from orchestrator.cli.exit import ExitCode
from orchestrator.cli.options import Json


def list_runs(as_json: Json = False) -> None:
    """The runs of this machine, newest first."""
    from orchestrator.cli.console import emit, emit_json
    from orchestrator.cli.session import open_session
    from orchestrator.core.lease.attempt import LOCAL
    from orchestrator.core.text.durations import format_duration, format_usd
    from orchestrator.report import costs
    from orchestrator.report.layout import day_clock

    session = open_session()
    session.recover()
    rows: list[dict[str, Any]] = [
        {
            "run": run.id,
            "name": run.name,
            "state": str(attempt.state),
            "rc": attempt.rc,
            "cloud": run.cloud,
            "job": run.job_path,
            "created_at": run.created_at,
            "ended_at": attempt.ended_at,
            "directory": run.directory,
            "usd": costs.of_run(session.ledger, run, session.now(run.cloud)),
        }
        for run, attempt in session.ledger.runs()
    ]
    if as_json:
        emit_json(rows)
    elif not rows:
        emit("no runs yet; `tpujob run jobs/hello.yaml` makes one")
    else:
        for row in rows:
            took = format_duration(row["ended_at"] - row["created_at"]) if row["ended_at"] else "-"
            usd = "" if row["cloud"] == LOCAL else format_usd(row["usd"])
            start = day_clock(row["created_at"])
            emit("\t".join([row["run"], row["name"], row["state"], start, took, row["cloud"], usd]))
    raise ExitCode(session.exit_code())
