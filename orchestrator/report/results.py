"""What a run left behind, read from the ledger and from its artifact files: `tpujob show`, and the result line of `run`.

Measurements stay in the files that the payload wrote; nothing here is stored twice. Artifacts came from a worker, so they
are data to be read with care, never trusted to have a shape.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.core.lease.attempt import LOCAL, Attempt, AttemptState, RunRecord
from orchestrator.core.text.durations import format_duration, format_usd
from orchestrator.ledger.ledger import Ledger
from orchestrator.report import compare, costs, story
from orchestrator.report.artifact_files import read_object
from orchestrator.report.figures import figures
from orchestrator.report.layout import day_clock

if TYPE_CHECKING:
    from orchestrator.engine.jobs.progress import Outcome


def describe(outcome: Outcome) -> str:
    """The run's result in one line."""
    if outcome.state is AttemptState.SUCCEEDED:
        parts = ["succeeded", *_metric_words(metrics(Path(outcome.run.directory))), _artifact_words(outcome)]
        return " · ".join(part for part in parts if part)
    message = outcome.error.message if outcome.error else "unknown"
    return message if message.startswith(str(outcome.state)) else f"{outcome.state}: {message}"


def metrics(directory: Path) -> dict[str, Any]:
    """The payload's metrics.json of worker 0, or nothing when there is none that can be read."""
    return read_object(directory / "worker0" / "artifacts" / "metrics.json")


def payload_spans(directory: Path) -> dict[str, float]:
    """Where the payload says that its seconds went: train, compile, … Its total is left out: the job's span says it."""
    seconds = metrics(directory).get("seconds")
    if not isinstance(seconds, dict):
        return {}
    order = ("train", "compile", "eval", "data", "import", "checkpoint")
    found = {name: seconds.get(f"{name}_s") for name in order}
    return {name: float(value) for name, value in found.items() if isinstance(value, int | float)}


def _metric_words(found: dict[str, Any]) -> list[str]:
    words = []
    accuracy = found.get("test_accuracy")
    if isinstance(accuracy, int | float):
        words.append(f"test accuracy {accuracy * 100:.1f} %")
    dataset = found.get("dataset")
    if isinstance(dataset, dict) and dataset.get("synthetic"):
        words.append("on generated digits, not real images")
    rate = found.get("images_per_s")
    if isinstance(rate, int | float):
        words.append(f"{rate:,.0f} images/s")
    return words


def _artifact_words(outcome: Outcome) -> str:
    collected = outcome.collected
    if collected is None or not collected.files:
        return ""
    count = len(collected.files)
    return f"{count} artifact{'s' if count > 1 else ''}, {collected.size_bytes / 1000:,.0f} KB, all hashes match"


def report(ledger: Ledger, run: RunRecord, attempt: Attempt, now: float) -> dict[str, Any]:
    """The stable shape of `tpujob show --json`. `now`: by the ledger's time of the run's cloud."""
    usd = costs.of_run(ledger, run, now)
    lease = ledger.lease(attempt.lease_id) if attempt.lease_id else None
    directory = Path(run.directory)
    files = [path for path in sorted(directory.rglob("*")) if path.is_file() and not path.is_symlink()]
    return {
        "run": run.id,
        "name": run.name,
        "state": str(attempt.state),
        "rc": attempt.rc,
        "detail": attempt.detail,
        "cloud": run.cloud,
        "job": run.job_path,
        "spec": run.spec,
        "created_at": run.created_at,
        "ended_at": attempt.ended_at,
        "directory": run.directory,
        "usd": usd,
        "lease": None
        if lease is None
        else {
            "id": lease.id,
            "node": lease.name.node,
            "zone": lease.name.zone,
            "project": lease.name.project,
            "accelerator_type": lease.accelerator_type,
            "spot": lease.spot,
            "state": str(lease.state),
            "ready_at": lease.ready_at,
            "gone_at": lease.gone_at,
            "usd": costs.of_lease(lease, now),
            "emulated": lease.cloud == "emulated",
        },
        "attempts": story.attempts(ledger, run, now),
        "story": [{"at": at, "what": what} for at, what in _story(ledger, attempt)],
        "figures": figures(run, attempt, lease, usd),
        "metrics": metrics(directory),
        "files": [{"path": str(path.relative_to(directory)), "size_bytes": path.stat().st_size} for path in files],
    }


def _story(ledger: Ledger, attempt: Attempt) -> list[tuple[float, str]]:
    """What happened, in order of time, in words: the attempt's events and those of its lease."""
    events = [(at, _words(kind, data)) for at, kind, data in ledger.events(attempt.id)]
    if attempt.lease_id:
        events += [(at, _words(kind, data)) for at, kind, data in ledger.events(attempt.lease_id)]
    return sorted(events, key=lambda event: event[0])


def _words(kind: str, data: dict[str, Any]) -> str:
    match kind:
        case "began":
            return "run began"
        case "tried":
            return f"{data['where']}: {data['why']}; proven gone"
        case "leased":
            return f"uses lease {data['lease_id']}"
        case "moved":
            return f"{data['state']}"
        case "attempt_ended":
            return f"{data['state']}{': ' + data['detail'] if data.get('detail') else ''}"
        case "intent":
            return "name written down, before anything was asked of the cloud"
        case "sent":
            return "create sent"
        case "create_refused":
            return f"create refused: {data['why']}"
        case "created":
            return "create accepted"
        case "settled":
            return "create settled"
        case "ready":
            return "slice READY"
        case "held":
            return f"kept until {day_clock(data['until'])}"
        case "results_collected":
            return f"what was left on its slice is at home: {data['state']}"
        case "down":
            return f"delete: {data['reason']}"
        case "gone":
            return f"proven gone: {data['evidence']}"
    return kind


def report_lines(shape: dict[str, Any]) -> list[str]:
    took = format_duration(shape["ended_at"] - shape["created_at"]) if shape["ended_at"] else "not ended"
    lines = [
        f"run      {shape['run']} · {shape['name']} · {shape['state']} · {took} · {shape['cloud']}",
        f"job      {shape['job']}",
    ]
    if shape["detail"]:
        lines.append(f"why      {shape['detail']}")
    lease = shape["lease"]
    if lease is not None:
        lines.append(f"slice    {lease['node']} · {lease['accelerator_type']} · {lease['zone']} · {lease['state']}")
    lines += _cost_lines(shape)
    lines += story.lines(shape["attempts"])
    lines += [f"story    {day_clock(event['at'])}  {event['what']}" for event in shape["story"]]
    for words in _metric_words(shape["metrics"]):
        lines.append(f"result   {words}")
    lines += compare.one(shape["figures"])
    lines += [f"file     {file['path']}  {file['size_bytes']:,} bytes" for file in shape["files"]]
    lines.append(f"in       {shape['directory']}")
    return lines


def _cost_lines(shape: dict[str, Any]) -> list[str]:
    """Of the whole run; how much each attempt took is in the lines of the story. Nothing where nothing can cost anything."""
    if shape["cloud"] == LOCAL:
        return []
    words = [format_usd(shape["usd"])]
    if shape["cloud"] == "emulated":
        words[0] += " (emulated: not billed)"
    if len(shape["attempts"]) > 1:
        words.append(f"all {len(shape['attempts'])} attempts")
    return [f"cost     {' · '.join(words)}"]
