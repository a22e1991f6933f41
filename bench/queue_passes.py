"""A pass over a queue of 1,000 jobs that wait, for capacity or for the 4 slots in which others run: time, memory and calls.

Whole commands, each a fresh process. Beside them, in the same minutes: a script of fifty lines that does the same with a table
in sqlite3, or one JSON object in the bucket, and that proves nothing (`harness/queue_by_hand.py`).
"""

from __future__ import annotations

import json
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from harness import queue_by_hand
from harness.processes import Spent, timed
from harness.results import Report, options, spread, verdict
from harness.sandbox import ZONE, Sandbox, sandbox, tpujob

from orchestrator.api.queue.hands import RecordIn
from orchestrator.queue import steps
from orchestrator.queue.passes import change, play
from orchestrator.queue.record import Queue, Refusal
from orchestrator.queue.store import open_store

RUNNING, WAITING, REQUESTS = 4, 1_000, 3
MOST_S, MOST_MB = 1.0, 100.0
COLUMNS = ("pass", "all of it, s", "processor s", "peak MB", "the pass alone, s", "target")
SLEEPS = f"name: sleeps\ntpu: {{accelerator: v5litepod-4, zone: {ZONE}}}\ncommand: sleep 3600\n"
BUCKET = "gs://queues/mine"


def main() -> None:
    arguments = options(str(__doc__), rounds=11)
    report = Report("queue_passes.py", "a pass over a queue of a thousand jobs", COLUMNS)
    for title, where in (("state directory", None), ("bucket", BUCKET)):
        with sandbox() as here:
            waiting(here, title, where, arguments.rounds, report)
        with sandbox() as here:
            notes = measured(here, title, where, arguments.rounds, report)
        report.notes += [f"A pass with jobs that run calls, with the record in the {title}: {notes}."]
    report.notes += [
        f"{WAITING:,} jobs of {REQUESTS} requests wait, for capacity or while {RUNNING} run on slices of their own; nothing "
        "is due. A pass makes the same calls however many wait; `--forever` makes one a minute.",
        "The pass alone is the time of `tpujob queue run` less that of `tpujob queue`, which only lists, in the same minute.",
        "The script makes the same calls to the API, one after the other, and reads the same record; it has no ledger, looks "
        "at no claim, and names no state of a job. Both print all jobs as JSON.",
    ]
    report.publish(arguments)


def prepared(here: Sandbox, where: str | None) -> tuple[str, dict[str, str], Callable[..., Spent]]:
    """Return the address of the emulator, the environment, and what times a command of the queue."""
    url = here.emulator().url
    path = Path(here.environment()["XDG_CONFIG_HOME"], "tpujob", "settings.yaml")
    path.parent.mkdir(parents=True)
    path.write_text(f"queue: {{{f'store: {where}, ' if where else ''}slots: {RUNNING}}}\n")
    environment = here.environment(STORAGE_EMULATOR_HOST=url, TPUJOB_COLLECTOR="off")

    def command(*words: str) -> Spent:
        return timed(tpujob("queue", *words), environment, here.directory)

    return url, environment, command


def waiting(here: Sandbox, title: str, where: str | None, rounds: int, report: Report) -> None:
    """Add the row of a store where all jobs wait for capacity."""
    url, _, command = prepared(here, where)
    command("add", str(here.write("sleeps.yaml", SLEEPS)))
    wait_in(where or str(here.directory / "state" / "queue"), url, refused=True)
    command("run", "--json")
    ours, alone = [], []
    for _ in range(rounds):
        listed = command("--json")
        ours.append(command("run", "--json"))
        alone.append(ours[-1].wall_s - listed.wall_s)
    assert not here.nodes(), "nothing was created"
    row(report, f"1,000 wait for capacity, {title}", ours, alone)


def measured(here: Sandbox, title: str, where: str | None, rounds: int, report: Report) -> str:
    """Add the rows of one store with jobs that run; return the calls of a pass, in words."""
    url, environment, command = prepared(here, where)
    job = str(here.write("sleeps.yaml", SLEEPS))
    command("add", *[job] * RUNNING)
    command("run")
    seen = wait_in(where or str(here.directory / "state" / "queue"), url)
    assert len(seen.with_turn) == RUNNING == len(here.nodes()), "they run"
    nodes = [str(job.turn.leases[-1]["node"]) for job in seen.with_turn if job.turn is not None]
    token, table = here.emulator_directory / "token", here.directory / "table.sqlite3"
    by_hand = [sys.executable, queue_by_hand.__file__, url, str(token), *by_hand_record(seen, where, table, url)]
    theirs: Callable[[], Spent] = lambda: timed([*by_hand, *nodes], environment, here.directory)  # noqa: E731
    command("run", "--json"), theirs()  # what is compiled and cached is so for all that are measured
    ours, other, alone, calls = [], [], [], Counter[str]()
    for _ in range(rounds):
        listed, before = command("--json"), last_call(here)
        ours.append(command("run", "--json"))
        calls = called(here, before)
        alone.append(ours[-1].wall_s - listed.wall_s)
        other.append(theirs())
    row(report, f"the same while {RUNNING} run, {title}", ours, alone)
    row(report, "the script, " + (f"one JSON object in the {title}" if where else "sqlite3"), other)
    command("remove", *[each.id for each in seen.jobs], "waits")
    command("run")
    return ", ".join(f"{count} × {operation}" for operation, count in sorted(calls.items()))


def row(report: Report, what: str, spent: list[Spent], alone: list[float] | None = None) -> None:
    """Add a row. `alone`: the seconds of our passes, which have targets."""
    wall, peak = [each.wall_s for each in spent], [each.peak_mb for each in spent]
    kept = f"{verdict(alone, MOST_S)}; {verdict(peak, MOST_MB, 'MB')}" if alone else ""
    cells = spread(wall), spread([each.cpu_s for each in spent]), spread(peak, 0)
    report.row(what, *cells, spread(alone, 1) if alone else "", kept)


def wait_in(where: str, url: str, *, refused: bool = False) -> Queue:
    """Let so many jobs wait in the record, as `tpujob queue add` would for as many files; return the record before.

    `refused`: also those that were there, for capacity.
    """
    records = RecordIn(open_store(where, emulator=url))
    found = play(records.read())
    before: Queue = found.queue
    like = before.jobs[0]
    many = [
        replace(like, id=f"w{number:09}", name="waits", request=f"{number % REQUESTS:016}", turn=None, attempts=0)
        for number in range(WAITING)
    ]
    play(change(records, steps.add(*many)))
    if refused:
        until = asdict(Refusal("no capacity", found.now + 86400.0, 5))
        words = dict.fromkeys({each.request for each in (*many, like)}, until)
        play(change(records, lambda queue, now: replace(queue, refused=words)))
    return before


def by_hand_record(seen: Queue, where: str | None, table: Path, url: str) -> list[str]:
    """Keep the same jobs as the script does; return its word for where."""
    store = open_store(where, emulator=url) if where else None
    if store is not None:
        record = play(RecordIn(store).read()).queue
        store.write("by-hand.json", json.dumps([asdict(job) for job in record.jobs]).encode(), "")
        return [f"{where}/by-hand.json"]
    with sqlite3.connect(table) as db:
        db.execute("create table job (id text primary key, state text, priority int, place real, job text)")
        jobs = [*seen.jobs, *(replace(seen.jobs[0], id=f"w{number:09}", turn=None) for number in range(WAITING))]
        rows: list[tuple[Any, ...]] = [
            (job.id, "running" if job.turn else "waiting", job.priority, job.order, json.dumps(asdict(job)))
            for job in jobs
        ]
        db.executemany("insert into job values (?, ?, ?, ?, ?)", rows)
    db.close()
    return [str(table)]


def last_call(here: Sandbox) -> int:
    return max((row["number"] for row in here.admin("requests")["requests"]), default=0)


def called(here: Sandbox, after: int) -> Counter[str]:
    """The calls of the client since then, by operation."""
    rows = here.admin(f"requests?after={after}")["requests"]
    return Counter(row["operation"] for row in rows if row["caller"] == "client" and row["operation"])


if __name__ == "__main__":
    main()
