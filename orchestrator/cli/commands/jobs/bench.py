"""`tpujob bench`: the variants of a job, one after the other, and the table that compares them."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.exit import ExitCode
from orchestrator.cli.options import Cloud, Csv, Json, Markdown, Project

if TYPE_CHECKING:
    from orchestrator.client.session import Session
    from orchestrator.core.jobfile.model import JobSpec

# After these the next variant may fare better: the job's own failures, damaged artifacts, no capacity, a lost slice, time.
GO_ON = {*range(1, 64), 65, 69, 71, 124}


def bench(
    file: Annotated[Path, typer.Argument(metavar="BENCH.yaml", help="The bench file: a base job and its variants.")],
    again: Annotated[bool, typer.Option("--again", help="Run every variant, also what was run before.")] = False,
    as_json: Json = False,
    as_markdown: Markdown = False,
    as_csv: Csv = False,
    cloud: Cloud = None,
    project: Project = None,
) -> None:
    """Run the variants of a job one after the other, then print the comparison. What is done already is not run again."""
    from orchestrator.cli.commands.results.compare import print_table
    from orchestrator.errors import UserError

    if as_json + as_markdown + as_csv > 1:
        raise UserError("--json, --markdown and --csv exclude each other")
    base, specs = _read(file)
    from orchestrator.cli.session import open_session

    session = open_session(cloud, project)
    keys = {name: _key(session, spec, base) for name, spec in specs.items()}
    _check(specs, base, session)
    failed: dict[str, int] = {}
    for number, (name, spec) in enumerate(specs.items(), 1):
        run = None if again else _done(session, keys[name])
        if run is not None:
            session.reporter.say(
                "bench", f"{name} ({number} of {len(specs)}): done before, run {run}; --again runs it again"
            )
            continue
        session.reporter.say("bench", f"{name} ({number} of {len(specs)})")
        code = _run(spec, base, {"variant": name, "key": keys[name]}, cloud, project)
        if code:
            failed[name] = code
            session.reporter.say("bench", f"{name} ended with code {code}")
        if code and code not in GO_ON:
            session.reporter.say("bench", "stopped; the same command goes on where it was")
            raise ExitCode(code)
    runs = [run for name in specs if name not in failed and (run := _done(session, keys[name]))]
    if runs:
        print_table(session, runs, as_json=as_json, as_markdown=as_markdown, as_csv=as_csv)
    raise ExitCode(session.exit_code(next(iter(failed.values()), 0)))


def _read(file: Path) -> tuple[Path, dict[str, JobSpec]]:
    """The path of the base job, to which paths in the variants are relative, and the variants, all of them checked."""
    from orchestrator.client.jobs.job_files import read_file
    from orchestrator.core.jobfile import variants as benches
    from orchestrator.core.text import names

    default_name = names.to_job_name(file.stem)
    outline = benches.outline(read_file(file), path=str(file), default_name=default_name)
    base = file.parent / outline.base
    return base, benches.variants(outline, read_file(base), base_path=str(base))


def _check(specs: dict[str, JobSpec], base: Path, session: Session) -> None:
    """What the last variant lacks is said before the first one is run."""
    import os

    from orchestrator.core.jobfile import model
    from orchestrator.engine.jobs import prepare

    for spec in specs.values():
        prepare.check_directories(spec, base)
        model.resolve_env(spec, os.environ)
        if spec.train is not None and spec.on == "local":
            prepare.check_local_training(spec.train.backend, "a job with `on: local` trains")
        elif spec.train is not None and session.target.kind == "emulated":
            prepare.check_local_training()


def _key(session: Session, spec: JobSpec, base: Path) -> str:
    """The same for the same work: the job as resolved (secrets by name only), its code and data, and the cloud."""
    import hashlib
    import json

    from orchestrator.core.lease.attempt import LOCAL
    from orchestrator.engine.jobs import prepare

    bundle = prepare.bundle(spec, base, session.directory / "bundles")
    cloud = LOCAL if spec.on == "local" else f"{session.target.kind} {session.target.project}"
    said = {"job": spec.model_dump(mode="json"), "bundle": bundle.sha256 if bundle else None, "cloud": cloud}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def _done(session: Session, key: str) -> str | None:
    """The newest run of this very work that succeeded and whose files are still there."""
    from orchestrator.core.lease.attempt import AttemptState

    for run, attempt in session.ledger.runs():
        if (
            (run.spec.get("bench") or {}).get("key") == key
            and attempt.state is AttemptState.SUCCEEDED
            and Path(run.directory, "worker0").is_dir()
        ):
            return run.id
    return None


def _run(spec: JobSpec, base: Path, bench: dict[str, str], cloud: str | None, project: str | None) -> int:
    """One variant, by the way of every run. stdout is for the table: what the job prints goes to stderr."""
    from orchestrator.cli.commands.jobs.run import start
    from orchestrator.cli.console import console
    from orchestrator.client.jobs.job_files import environment

    local = spec.on == "local"  # has no use for a cloud, whichever the others are run on
    try:
        with contextlib.redirect_stdout(sys.stderr):
            start(
                spec,
                environment(spec, console().reporter),
                base,
                bench=bench,
                cloud=None if local else cloud,
                project=None if local else project,
            )
    except ExitCode as done:
        return done.code
