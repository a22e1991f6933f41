"""What a run is made with, kept in its directory while it begins; and the same run again, from what was kept.

What is kept holds no secret: variables that hold one are kept by their names, and a job that has one elsewhere is not kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import orchestrator
from orchestrator import job as job_file
from orchestrator.api.jobs import snapshot
from orchestrator.api.jobs.job import CheckedJob
from orchestrator.api.session import lookup
from orchestrator.errors import TpujobError, UnknownRun, UserError
from orchestrator.hosts.shipping.store import Manifest
from orchestrator.job.rules.env import ENV_REFERENCE
from orchestrator.places.preparation import code
from orchestrator.places.preparation.resolving import LOCK
from orchestrator.report.comparison.figures import FUNCTION_ENTRY
from orchestrator.report.files import made as made_file
from orchestrator.system import private_files, trees, whole_file
from orchestrator.text.redaction import Redactor, is_secret_name
from orchestrator.text.terminal import printable
from orchestrator.text.units import format_size
from orchestrator.traits import traits_of, traits_on
from orchestrator.vm.files.sensitive import may_hold_secret, secret_by_content, secret_by_name

if TYPE_CHECKING:
    from orchestrator.api.session.session import Session
    from orchestrator.hosts.shipping.shipment import Shipment
    from orchestrator.job.job_spec import JobSpec
    from orchestrator.job.overrides import Override
    from orchestrator.places.place import Prepared
    from orchestrator.report.files.made import Code, Made

MOST_BYTES = 32 << 20  # of code that is kept with each run; more than that is data
MOST_LOOKED_AT_BYTES = 1 << 20  # of a file in which secrets are looked for: more than that is no source
JOIN_S = 60.0
OLD_S = 86_400.0  # what a killed command left
TRAINS = "python3 -m payload --config train.json"
IN_A_FILE = {snapshot.JOB: "the job", snapshot.REQUIREMENTS: "`requirements:`", snapshot.CONSTRAINTS: "its constraints"}


@contextmanager
def kept(session: Session, spec: JobSpec, path: Path, prepared: Prepared, again_of: str | None) -> Iterator[None]:
    """Keep what the run is made with, beside the block. It never fails the run: what goes wrong is a notice after the block."""
    problems: list[str] = []

    def keep() -> None:
        try:
            _keep(session, spec, path, prepared, again_of)
        except Exception as error:
            problems.append(error.message if isinstance(error, TpujobError) else str(error))

    thread = Thread(target=keep, name="made", daemon=True)  # most runs wait for their slice meanwhile
    thread.start()
    try:
        yield
    finally:
        thread.join(JOIN_S)
        if problems:
            session.reporter.notice("note", f"what the run was made with is not kept: {problems[0]}")


def _keep(session: Session, spec: JobSpec, path: Path, prepared: Prepared, again_of: str | None) -> None:
    secrets, directory = session.reporter.secrets, Path(prepared.run.directory)
    shipment = prepared.shipment or prepared.shipped
    own = snapshot.shipped(spec, path, shipment)
    state = snapshot.git_of(session, spec, path, own)
    lock = prepared.files.get(LOCK, "")
    not_kept = _why_not_kept(own, shipment, secrets)
    about = {
        "schema": made_file.SCHEMA,
        "tpujob": orchestrator.__version__,
        "client": {"python": platform.python_version(), "platform": platform.platform()},
        "command": secrets.hide(spec.command or TRAINS),
        "git": None if state is None else {key: value for key, value in state.items() if key != "patch"},
        "code": _code(spec, path, own, not_kept),
        "lock": {"sha256": hashlib.sha256(lock.encode()).hexdigest()} if lock else None,
        "again_of": again_of,
    }
    archive = snapshot.Kept(spec, path, shipment, lock, _env(spec, secrets), state, code=not not_kept)
    texts, missing = {}, "a function is called again from Python"
    if spec.train is None or spec.train.entry != FUNCTION_ENTRY:
        texts, missing = archive.texts(), ""
        shown = (IN_A_FILE[name] for name, text in texts.items() if name in IN_A_FILE and secrets.hide(text) != text)
        if (where := next(shown, None)) is not None:
            missing = f"{where} has a secret in it, and no secret is kept; give it as a variable, by `env:`"
    (directory / made_file.ARCHIVE).unlink(missing_ok=True)  # of an attempt before
    whole_file.replace(directory / made_file.NAME, json.dumps(about | {"missing": missing}, indent=1))
    if state is not None and state.get("patch"):
        whole_file.replace(directory / made_file.PATCH, str(state["patch"]))
    if not missing:
        archive.write(directory / made_file.ARCHIVE, texts)


def _why_not_kept(own: Manifest, shipment: Shipment | None, secrets: Redactor) -> str:
    """Return why the code does not go into the archive; empty: it does."""
    if own.size_bytes > MOST_BYTES:
        return f"is more than {format_size(MOST_BYTES)}"
    for each in own.files:
        where = f"has a secret in {printable(each.path)}"
        if each.size_bytes and secret_by_name(each.path):  # it is shipped, since a .tpujobignore allows it
            return where
        if shipment is None or not 0 < each.size_bytes <= MOST_LOOKED_AT_BYTES:
            continue
        content = shipment.contents[each.sha256].read_bytes()
        looks_so = may_hold_secret(each.path, each.size_bytes) and secret_by_content(content)
        if looks_so or secrets.hide_bytes(content) is not content:
            return where
    return ""


def _code(spec: JobSpec, path: Path, own: Manifest, not_kept: str) -> dict[str, Any] | None:
    if own == Manifest(()):
        return None
    data = spec.train.data_dir if spec.train is not None else None
    places = {"directory": spec.code, "data_directory": data}
    return {
        "sha256": own.id,
        "files": len(own.files),
        "size_bytes": own.size_bytes,
        "not_kept": not_kept,
        **{key: str((path.parent / place).resolve()) if place is not None else "" for key, place in places.items()},
    }


def _env(spec: JobSpec, secrets: Redactor) -> dict[str, str]:
    """Return the variables of the job; what is secret comes from the environment of the caller another time."""

    def is_secret(name: str, value: str) -> bool:
        is_named = value != "" and is_secret_name(name) and not ENV_REFERENCE.search(value)
        return is_named or secrets.hide(value) != value

    return {name: f"${{env:{name}}}" if is_secret(name, value) else value for name, value in spec.env.items()}


# -- again -------------------------------------------------------------------------------------------------------------


def load(session: Session, text: str, stack: ExitStack, overrides: Sequence[Override] = ()) -> CheckedJob:
    """Return the job of a run as it was, with the code as it was shipped, changed as the command says; report where it is from.

    `text`: as for `lookup.run`. `stack` removes the code, which each new attempt reads. Raises UnknownRun; UserError with what
    is missing, for a call of a function, and for overrides that change the code or make it several jobs.
    """
    try:
        run, _ = lookup.run(session, text)
    except UnknownRun as error:
        if sweeps := lookup.meant(session, text).sweeps:
            error.hint = f"{_instead(sweeps[0].job_path, is_sweep=True)}; {error.hint}"
        raise
    session.know_secrets(run)
    directory, made = Path(run.directory), made_file.read(Path(run.directory))
    hint = _instead(run.job_path, is_sweep=run.spec.sweep.name is not None)
    if made is None or made.missing:
        why = made.missing if made is not None else f"there is no {made_file.NAME} in {run.directory}"
        raise UserError(f"{run.id} ({run.name}) cannot be run again: {why}", hint=hint)
    base = session.directory / "again"
    private_files.make_directory(base)
    _remove_old(base)
    scratch = tempfile.TemporaryDirectory(prefix=f"{run.id}-", dir=base, ignore_cleanup_errors=True)
    spec, path = snapshot.unpack(directory / made_file.ARCHIVE, Path(stack.enter_context(scratch), "job"), hint)
    if made.code is not None and made.code.not_kept:
        _link_to_original(session, spec, path, made.code, run.id)
    spec = _changed(spec, overrides) if overrides else spec
    then, now = run.cloud, session.target.kind
    if traits_of(then).by_target and traits_on(spec.on).by_target and then != now and not session.cloud_is_named:
        what = f"{run.id} ({run.name}) ran on the {then} cloud, and --again would run it on the {now} cloud"
        raise UserError(what, hint=f"say which it is to be: `--cloud {then}` or `--cloud {now}`")
    session.reporter.notice("again", _told(run.id, made, spec))
    return CheckedJob(spec, path, run.id)


def _instead(job_path: str, *, is_sweep: bool) -> str:
    if not Path(job_path).is_file():
        return "give its job or its command to `tpujob run` anew"
    what, again = ("whole sweep", "--again ") if is_sweep else ("job", "")
    # Another directory may have another such file.
    where = "" if Path(job_path).is_absolute() else ", in the directory where it was started"
    return f"`tpujob run {again}{job_path}` runs the {what} as it is now{where}"


def _remove_old(base: Path) -> None:
    for left in base.iterdir():
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > OLD_S:
                trees.remove(left)


def _link_to_original(session: Session, spec: JobSpec, path: Path, told: Code, run: str) -> None:
    """Take the code from where it was, if it is the same. Raises UserError."""
    both = {snapshot.CODE: told.directory, snapshot.DATA_APART: told.data_directory}
    places = {name: place for name, place in both.items() if place}
    what = f"the code of {run} is not kept: it {told.not_kept}"
    for name, place in places.items():
        if not os.path.isdir(place):  # noqa: PTH112 - never raises
            raise UserError(f"{what}; and {place} is not there any more")
        shutil.rmtree(path.parent / name, ignore_errors=True)
        (path.parent / name).symlink_to(place)
    with ExitStack() as stack:
        shipment = code.shipment_of(session, code.survey_of(session, spec, path), stack)
        if snapshot.shipped(spec, path, shipment).id != told.sha256:
            raise UserError(f"{what}; and what is in {' or '.join(places.values())} has changed since")


def _changed(spec: JobSpec, overrides: Sequence[Override]) -> JobSpec:
    found = job_file.sweep.from_values(snapshot.values_of(spec), overrides)
    if isinstance(found, job_file.sweep.Sweep):
        raise UserError("--again repeats one run; a sweep is run from its job file")
    if _places(found) != _places(spec):
        raise UserError("--again runs the code that was kept: code, data_dir and requirements cannot be changed")
    return found


def _places(spec: JobSpec) -> tuple[object, ...]:
    return spec.code, spec.requirements, spec.train.data_dir if spec.train is not None else None


def _told(run: str, made: Made, spec: JobSpec) -> str:
    parts = [f"from {run}"]
    if made.code is not None:
        commit = made.git.commit[:7] if made.git is not None else ""
        about = ", ".join(filter(None, [f"commit {commit}" if commit else "", made.git.changes if made.git else ""]))
        where = "code as shipped then" if not made.code.not_kept else "the code where it was, unchanged"
        parts.append(f"{where}{f' ({about})' if about else ''}")
    if spec.requirements is not None:
        anew = "versions are chosen anew: none were chosen here then"
        parts.append("the versions of then" if made.lock_sha256 else anew)
    if made.tpujob != orchestrator.__version__:
        parts.append(f"by tpujob {orchestrator.__version__}, not {made.tpujob or 'that of then'}")
    return " · ".join(parts)
