"""The job of a command, and what it would ask for: its plan, or the objects that it would submit to a cluster.

The job is that of a file or of a command line, changed for this run, with the variables that it names. `run`, `submit` and
`plan` get their plan from the place of the job, so that `plan` shows what they do.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from orchestrator import job as job_file
from orchestrator import places
from orchestrator.api.jobs import checking
from orchestrator.api.jobs.job import PROGRAMS, CheckedJob, read_file, spec_of, sweep_of
from orchestrator.api.jobs.new_job_file import needs_of
from orchestrator.errors import UserError
from orchestrator.job.rules.env import secret_sources, secret_values
from orchestrator.notify import receivers
from orchestrator.places.place import Wish
from orchestrator.places.preparation import buckets, code, requirements
from orchestrator.places.preparation.code import ship_line, ship_shape, survey_of
from orchestrator.text import names
from orchestrator.text.units import format_duration

if TYPE_CHECKING:
    from orchestrator.api.jobs.checking import CheckResult
    from orchestrator.api.session.reporter import Reporter
    from orchestrator.api.session.session import Session
    from orchestrator.capacity.plan import Candidate
    from orchestrator.capacity.plan import Plan as Candidates
    from orchestrator.job.job_spec import JobSpec
    from orchestrator.job.overrides import Override
    from orchestrator.places.gke.preparation import Prepared
    from orchestrator.text.terminal import Table


# A word of a text for bash, as far as a name needs it.
_WORD = re.compile(r"""[;&|\n()<>]+|"[^"]*"|'[^']*'|[^\s;&|()<>]+""")


@dataclass(frozen=True, slots=True)
class JobRequest:
    """Which job, and what is different in this run. Every value is as it was typed; None changes nothing."""

    file: Path | None = None
    command: Sequence[str] | None = None  # in place of the file's; without a file it is the job
    accelerator: str | None = None
    zone: str | None = None
    spot: bool | None = None  # False: on-demand
    name: str | None = None
    max_duration: str | None = None
    keep_on_failure: str | None = None
    env: Sequence[str] | None = None  # NAME=VALUE, or NAME
    settings: Sequence[str] | None = None  # KEY=VALUE
    more: tuple[Override, ...] = ()  # what a command changes beside its options

    def overrides(self) -> Iterator[Override]:
        """Yield what changes the job: settings first, so that an option of its own counts more. Raises UserError."""
        Override = job_file.overrides.Override
        yield from map(Override.parse, self.settings or ())
        yield from map(Override.variable, self.env or ())
        for option, path, value in (
            ("--accelerator", ("tpu", "accelerator"), self.accelerator),
            ("--zone", ("tpu", "zone"), self.zone),
            ("--name", ("name",), self.name),
            ("--ttl", ("limits", "max_duration"), self.max_duration),
            ("--keep-on-failure", ("keep_on_failure",), self.keep_on_failure),
        ):
            if value is not None:
                yield Override.key(option, path, value)
        if self.spot is not None:
            provisioning = "spot" if self.spot else "on-demand"
            yield Override(f"--{provisioning}", ("tpu", "provisioning"), provisioning)
        if self.command and self.file is not None:
            yield Override.key("--", ("command",), _command(self.command))
        yield from self.more


def read(request: JobRequest) -> CheckedJob:
    """Return the job or the sweep of a command line, checked.

    Raises JobSpecError with the lines of all mistakes, UserError for a file or an option that cannot be read.
    """
    overrides = list(request.overrides())
    if request.file is not None:
        found = job_file.sweep.load(read_file(request.file), path=str(request.file), overrides=overrides)
        return CheckedJob(found, request.file)
    if not request.command:
        hint = "`tpujob run -- python train.py` runs a script of this directory; `tpujob init` writes a job file for it"
        raise UserError("there is nothing to run: name a job file, or a command after `--`", hint=hint)
    directory = working_directory()
    job = {"name": name_of(request.command), "command": _command(request.command), "code": "."}
    if (needs := needs_of(directory)) is not None:
        job["requirements"] = needs
    spec = job_file.sweep.from_values(job, overrides)
    return CheckedJob(spec, directory / f"Job({spec.name})")


def _command(words: Sequence[str]) -> str | list[str]:
    """Return the `command:`: the words of one program, or (a single one) a text for bash, as with ssh."""
    return words[0] if len(words) == 1 else list(words)


def name_of(command: Sequence[str]) -> str:
    """Return a name for the job of a command: that of the last script or module that it runs, else of a program."""
    words, name, found = _words(command), "", ""
    for before, word in pairwise(["", *words]):
        found = "" if re.fullmatch(r"([;&\n]|\|\|)+", word) else found or _named_by(before, word)
        name = found or name
    program = (word for word in words if "/" in word and "=" not in word)
    return names.to_job_name(PurePath(name or next(program, words[0] if words else "")).name)


def _words(command: Sequence[str]) -> list[str]:
    """Return the words of a command, with those of the text in it that a shell runs (`bash -c TEXT`) and without code."""
    if len(command) == 1:
        command = tuple(each.strip("\"'") for each in _WORD.findall(command[0].replace("\\\n", " ")))
    for number, (word, after) in enumerate(pairwise(command)):
        if re.fullmatch("-[a-z]*c", word):
            is_shell = any(PurePath(each).name in ("bash", "sh", "zsh", "dash") for each in command[:number])
            return [*command[:number], *(_words((after,)) if is_shell else ())]
    return list(command)


def _named_by(before: str, word: str) -> str:
    """Return the script or the module that this word is, the latter after `-m`; "" for any other word."""
    if before == "-m":
        return "" if re.match(r"pip$|torch\.distributed\.|accelerate\.", word) else word
    return PurePath(word).stem if PurePath(word).suffix in PROGRAMS else ""


def working_directory() -> Path:
    """Return the working directory, which is shipped as the code. Raises UserError for one that can hardly be meant."""
    try:
        directory = Path.cwd()
    except OSError as error:
        raise UserError("the working directory does not exist any more", hint="change into another one") from error
    if directory in (Path.home(), Path(directory.anchor)):
        hint = "change into the directory of the script, or write a job file with `code:` (`tpujob init`)"
        raise UserError(f"the working directory would be shipped as the code, and it is {directory}", hint=hint)
    return directory


def environment(spec: JobSpec, reporter: Reporter) -> dict[str, str]:
    """Return the job's variables, resolved. Hides their secrets in all later events, and reports the job's warnings."""
    env = job_file.job_spec.resolve_env(spec, os.environ)
    reporter.secrets.add(*secret_values(spec.env, os.environ))
    if spec.notify is not None:
        reporter.secrets.add(*receivers.addresses(spec.notify.wish, os.environ))
        if spec.notify.command is not None:
            reporter.notice("notify", f"this machine runs, as you: {spec.notify.command}")
    for line in spec.warnings():
        reporter.notice("warning", line)
    return env


@dataclass(frozen=True, slots=True, repr=False)
class Plan:
    """What a run would ask for; as text, the sentences and the table of `tpujob plan`.

    `plan` is None, and `requests` empty, for a job with `on: local`. With `on: gke` there is one candidate, whose zone is the
    namespace, and `requests` are the JobSet and its ConfigMap.
    """

    plan: Candidates | None
    requests: tuple[Mapping[str, Any], ...]  #: method, url and body of the create call of each candidate
    shape: Mapping[str, Any]  #: the whole as JSON values
    notes: tuple[str, ...] = ()  #: the plan in sentences
    table: Table | None = None  #: of the candidates

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """What would be asked for, in order; nothing for a job with `on: local`."""
        return self.plan.candidates if self.plan is not None else ()

    @property
    def worst_case_usd(self) -> float | None:
        """What the run costs at most, in US dollars by the price table. None: a price is unknown."""
        return 0.0 if self.plan is None else self.plan.worst_case_usd

    def __str__(self) -> str:
        return "\n".join([*self.notes, *(self.table.lines() if self.table else ())])

    def __repr__(self) -> str:
        return f"<plan of {self.shape['job']}: {len(self.requests)} candidates>"


def preview(session: Session, spec: JobSpec, path: Path) -> Plan:
    """Return what a run of this job would ask for, without asking for it. Raises UserError for a job that cannot be run."""
    place = places.place_on(spec.on)
    code.check_directories(spec, path)
    found = survey_of(session, spec, path)
    session.recover()
    ships = () if found is None else (ship_line(found),)
    ships = (*ships, *buckets.lines_of(session, spec), *requirements.warnings(spec, path))
    place.check(session, spec, path, Wish(only_plan=True))
    made = place.plan(session, spec, path)
    env = job_file.job_spec.resolve_env(spec, {**dict.fromkeys(secret_sources(spec.env), ""), **os.environ})
    ships = (*ships, *filter(None, [checking.told(spec, checking.recorded(session, spec, path, env))]))
    shape = made.shape(spec) | {"ship": ship_shape(found)}
    return Plan(made.plan, made.requests, shape, (*made.notes, *ships), made.table)


def check(session: Session, spec: JobSpec, path: Path, steps: int, within_s: float) -> CheckResult:
    """Check a job; see `Client.check`."""
    env = environment(spec, session.reporter)
    return checking.check(session, spec, path, env, steps=steps, within_s=within_s)


TO = "--to jobset"
# What only says where a VM is and how it is reached. The rest of what a cluster cannot do is refused, as with `on: gke`.
OF_A_VM = (("access",), ("tpu", "zone"), ("tpu", "runtime"), ("tpu", "order"))


@dataclass(frozen=True, slots=True, repr=False)
class Export:
    """The objects of one run that has not begun: a JobSet, a ConfigMap, and a Secret where it was asked for."""

    run: str
    documents: tuple[Mapping[str, Any], ...]
    comment: tuple[str, ...]  #: what to do with them, line by line

    def __str__(self) -> str:
        """The objects as YAML, below the comment."""
        from orchestrator.places.gke.preparation import to_yaml  # `plan` needs none of it

        return to_yaml(self.documents, self.comment)

    def as_json(self) -> dict[str, Any]:
        """The objects as one List, which kubectl takes; it refuses a bare array."""
        return {"apiVersion": "v1", "kind": "List", "items": list(self.documents)}

    def __repr__(self) -> str:
        return f"<export of run {self.run}: {len(self.documents)} objects>"


def exported(session: Session, job: JobRequest, *, with_secrets: bool = False, **gke: str | None) -> Export:
    """Return the objects of the job of a command, which may be one with `on: tpu`; see `export`.

    `gke`: keys of that name, from options of theirs. What is None is as the job and the settings say.
    """
    spec, path = _read(session, job, gke)
    return export(session, spec, path, with_secrets=with_secrets)


def export(session: Session, spec: JobSpec, path: Path, *, with_secrets: bool) -> Export:
    """Return the objects of a job with `on: gke`, under new ids. Asks no cluster.

    Without `with_secrets`, the Secret is left out, and your variables need not be set. Raises JobSpecError and UserError for a
    job that cannot be run on a cluster, and for code that only a run can upload.
    """
    from orchestrator.places.gke.preparation import prepare, variables  # `plan` needs none of it

    if spec.on != "gke":
        raise UserError(
            f"{spec.name} has `on: {spec.on}`, and only a job on a cluster has objects there", hint="write `on: gke`"
        )
    for line in spec.warnings():
        session.reporter.notice("warning", line)
    env = variables(spec, with_secrets=with_secrets)
    run, lease_id = (names.new_run_id(secrets.randbits(names.RUN_BITS)) for _ in range(2))
    with ExitStack() as stack:
        made = prepare(session, spec, path, run=run, lease_id=lease_id, env=env, stack=stack)
        if made.upload is not None:
            raise UserError(
                f"the code goes to {made.code_object}, and an export uploads nothing",
                hint="`tpujob run` and `tpujob submit` do; or ship less than a ConfigMap holds",
            )
        documents = made.documents()
    if not with_secrets:
        documents = tuple(each for each in documents if each["kind"] != "Secret")
    return Export(run, documents, _comment(made, spec, path, with_secrets=with_secrets))


def _read(session: Session, job: JobRequest, gke: Mapping[str, str | None]) -> tuple[JobSpec, Path]:
    """Return the job, as one with `on: gke`. What is only of VMs is left out, and reported."""
    Override = job_file.overrides.Override
    spec, path = _one_job(job)
    changes = []
    if spec.on != "gke":
        changes.append(Override(TO, ("on",), "gke"))
        for at in (each for each in OF_A_VM if _is_set(spec, each)):
            session.reporter.notice("export", f"{'.'.join(at)} has no use on a cluster, and is left out")
            changes.append(Override(TO, at, None))
    changes += [Override.key(f"--{key}", ("gke", key), value) for key, value in gke.items() if value is not None]
    return _one_job(replace(job, more=tuple(changes))) if changes else (spec, path)


def _one_job(request: JobRequest) -> tuple[JobSpec, Path]:
    found = read(request)
    if found.is_sweep:
        raise UserError(
            f"{found.name} is a sweep of {len(sweep_of(found).variants)} jobs, where one is expected",
            hint="`tpujob run` runs its variants; `tpujob export` takes a file of one job",
        )
    return spec_of(found), found.path


def _is_set(spec: JobSpec, at: tuple[str, ...]) -> bool:
    if len(at) == 1:
        return at[0] in spec.model_fields_set
    return any(at[1] in section.model_fields_set for section in (spec.tpu, *spec.tpu.any_of))


def _comment(made: Prepared, spec: JobSpec, path: Path, *, with_secrets: bool) -> tuple[str, ...]:
    job, of = made.job, made.job.slice
    label = f"{names.RUN}={job.labels[names.RUN]}"
    where = f"-n {job.target.namespace}"
    source = f" of {path}" if spec.file else ""
    slices = f"{job.slices} × {of.kind.name}" if job.slices > 1 else of.kind.name
    lines = [
        f"The job {spec.name}{source} on {slices}: {job.pods} pod{'s'[: job.pods != 1]} on {of.machine_type}, "
        f"of topology {of.topology}.",
        "Create it:  kubectl create -f FILE   (a plain `apply` refuses large ConfigMaps)",
        f"Delete it:  kubectl delete jobset,configmap,secret {where} -l {label}",
        "The JobSet deletes itself some time after its end; the others have no owner here, and stay until then.",
        f"Its pods run for {format_duration(job.deadlines.pod_s)} at most, and the cluster ends the job "
        f"{format_duration(job.deadlines.job_s)} after {'its admission' if job.target.queue else 'its creation'}.",
    ]
    if job.program.secrets:
        names_of = ", ".join(sorted(job.program.secrets))
        how = "holds the values of" if with_secrets else "is not here, and its pods wait for it: it holds"
        more = "" if with_secrets else "; `--with-secrets` prints it"
        lines.append(f"The Secret {job.name} {how} {names_of}{more}.")
    return tuple(lines)
