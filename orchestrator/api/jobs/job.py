"""A job as Python values: the same keys as the job file, checked by the same rules. Importing this module costs nothing.

Every field that is None is left out, and gets its default of docs/job-file.md. Durations are text such as `"90m"`, or a
timedelta; amounts of money are US dollars.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from datetime import timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from orchestrator import job as job_file
from orchestrator.api.session.arguments import Duration
from orchestrator.errors import UserError
from orchestrator.text.terminal import printable

if TYPE_CHECKING:
    from orchestrator.job.job_spec import JobSpec
    from orchestrator.job.sweep import Sweep

StrPath = str | os.PathLike[str]
Param = str | int | float | bool
ProvisioningKind = Literal["on-demand", "spot", "reserved", "flex-start", "queued"]
ViaKind = Literal["external", "internal", "iap"]


PROGRAMS = {".py": "python ", ".sh": "bash ", ".ipynb": "jupyter execute "}  # what may be named in place of a job file


class _Values:
    """What is set, and nothing else: for `repr` and for the check."""

    def _set(self) -> dict[str, Any]:
        return {
            each.name: value
            for each in fields(self)  # type: ignore[arg-type]  # every subclass is a dataclass
            if each.init and (value := getattr(self, each.name)) is not None and value != ""
        }

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._set().items())})"


@dataclass(frozen=True, kw_only=True, repr=False)
class TpuAlternative(_Values):
    """One TPU that the job accepts: an item of `Tpu.any_of`. What it leaves out is as the `Tpu` around it says."""

    accelerator: str | None = None  #: such as "v5litepod-8" or "v5e-8"
    zone: str | Sequence[str] | None = None  #: zones, regions or "any"
    runtime: str | None = None
    provisioning: ProvisioningKind | None = None
    spot: bool | None = None
    queue: bool | None = None
    unlisted: bool | None = None


@dataclass(frozen=True, kw_only=True, repr=False)
class Tpu(TpuAlternative):
    """Which TPU to ask for. The fields are the keys of `tpu:` in docs/job-file.md."""

    slices: int | None = None  #: at once, with on="gke"
    any_of: Sequence[TpuAlternative] | None = None
    order: Literal["as-listed", "cheapest", "fastest"] | None = None
    max_price_per_hour: float | None = None  #: US dollars, for the whole slice
    wait: Duration | None = None  #: for capacity
    race: bool | None = None


@dataclass(frozen=True, kw_only=True, repr=False)
class Emulated(_Values):
    """A smaller training on the emulated cloud. The fields are the keys of `train.emulated:`."""

    cores: int | None = None
    examples: int | None = None
    test_examples: int | None = None
    epochs: int | None = None


@dataclass(frozen=True, kw_only=True, repr=False)
class Profile(_Values):
    """Which steps of the built-in training a profiler traces. The fields are the keys of `train.profile:`."""

    start: int | None = None  #: the number of the first traced step, from 1
    steps: int | None = None


@dataclass(frozen=True, kw_only=True, repr=False)
class Train(_Values):
    """The built-in training, or with `entry` one of the job's own. The fields are the keys of `train:`."""

    entry: str | None = None  #: "module:function" in `code`
    options: Mapping[str, Any] | None = None
    backend: Literal["xla", "cuda", "cpu", "tpu", "auto", "none"] | None = None
    model: Literal["mnist_cnn", "alexnet", "mlp"] | None = None
    dataset: Literal["mnist", "fashion-mnist", "synthetic", "idx"] | None = None
    data_dir: StrPath | None = None
    fallback: Literal["sample", "synthetic"] | None = None
    epochs: int | None = None
    batch_size: int | None = None
    cores: Literal["all"] | int | None = None
    lr: float | None = None
    momentum: float | None = None
    optimizer: Literal["sgd", "adam"] | None = None
    seed: int | None = None
    precision: Literal["fp32", "bf16", "fp16"] | None = None
    image_size: int | None = None
    examples: int | None = None
    test_examples: int | None = None
    eval: bool | None = None
    checkpoint: bool | None = None
    checkpoint_every: str | None = None  #: such as "1 epoch", "200 steps" or "30 s"
    keep_checkpoints: int | None = None
    resume: bool | None = None
    num_workers: int | None = None
    timing: Literal["stamped", "drained"] | None = None
    profile: Profile | None = None
    emulated: Emulated | None = None


@dataclass(frozen=True, kw_only=True, repr=False)
class Gke(_Values):
    """The cluster, with `on="gke"`. The fields are the keys of `gke:`; what is None is as the settings say."""

    context: str | None = None  #: of the kubeconfig
    cluster: str | None = None  #: "projects/P/locations/L/clusters/C", in place of a context
    namespace: str | None = None
    queue: str | None = None  #: a LocalQueue of Kueue
    priority: str | None = None  #: a WorkloadPriorityClass of Kueue
    image: str | None = None
    service_account: str | None = None  #: of Kubernetes
    reservation: str | None = None
    machine_type: str | None = None
    privileged: bool | None = None
    host_network: bool | None = None
    grace: Duration | None = None  #: of the job after SIGTERM
    pod: Mapping[str, Any] | None = None  #: a fragment of a PodSpec, merged into the pod


@dataclass(frozen=True, kw_only=True, repr=False)
class Access(_Values):
    """How the workers are reached. The fields are the keys of `access:`; what is None is as the settings say."""

    via: Literal["auto", "external", "internal", "iap"] | None = None
    ssh_proxy_command: str | None = None  #: such as "ssh -W %h:%p bastion"
    os_login: Literal["auto", "on", "off"] | None = None
    network: str | None = None
    subnetwork: str | None = None
    tags: Sequence[str] | None = None
    secure_boot: bool | None = None


@dataclass(frozen=True, kw_only=True, repr=False)
class Notify(_Values):
    """Who is told what becomes of the run. The fields are the keys of `notify:`; what is None is as the settings say."""

    url: str | None = None  #: "${env:NAME}", the variable that has the address
    command: str | None = None  #: for the shell of this machine, in place of an address
    on: Sequence[str] | None = None  #: the events to tell of, such as "ended"


@dataclass(frozen=True, kw_only=True, repr=False)
class Limits(_Values):
    """Where the job ends, whatever happens. The fields are the keys of `limits:`."""

    max_duration: Duration | None = None
    max_cost: float | None = None  #: US dollars
    linger: Duration | None = None
    max_results: str | None = None  #: such as "50GB"
    max_log: str | None = None  #: of each worker
    stall: Duration | None = None


@dataclass(frozen=True, kw_only=True, repr=False)
class Job(_Values):
    """What to run, and on which TPU: `command` or `train`, and the other keys of the job file.

    A job is checked when it is made. `code` and `train.data_dir` are absolute paths, or relative to `directory`: the working
    directory at that time; for a loaded job, the directory of its file. `dataclasses.replace` makes a changed copy.

    Raises JobSpecError, which lists every mistake.

    Example::

        job = tpujob.Job(
            tpu=tpujob.Tpu(accelerator="v5e-8"),
            command=["python3", "train.py"],
            code=".",
            limits=tpujob.Limits(max_duration="2h"),
        )
    """

    tpu: Tpu | None = None
    command: str | Sequence[str] | None = None  #: text for bash, or the arguments of one program
    train: Train | None = None
    name: str = ""  #: "": the name of the file, or "job"
    on: Literal["tpu", "gke", "local"] | None = None
    gke: Gke | None = None
    access: Access | None = None
    setup: str | Sequence[str] | None = None
    requirements: StrPath | Sequence[str] | None = None  #: a file, or packages
    python: str | None = None  #: such as "3.12"
    env: Mapping[str, str | float] | None = None  #: a number is text, as Python writes it
    code: StrPath | None = None
    data: Mapping[str, str] | None = None  #: such as {"./data": "gs://my-bucket/my-data"}, fetched by each worker
    artifacts: Sequence[str] | None = None
    metrics: Mapping[str, str] | None = None
    ports: int | Sequence[int] | None = None  #: of worker 0, forwarded to this machine while `run` follows the job
    tpu_metrics: bool | None = None
    bucket: str | None = None
    allow_egress: bool | None = None
    copy_while_running: bool | None = None
    limits: Limits | None = None
    keep_on_failure: Duration | None = None
    on_preemption: Literal["stop", "restart"] | None = None
    max_restarts: int | None = None
    notify: Notify | str | None = None  #: who is told; "${env:NAME}" has the address; "off": nobody
    params: Mapping[str, Param] | None = None
    matrix: Mapping[str, Sequence[Param]] | None = None  #: with it, or with `variants`, a job for `Client.sweep`
    variants: Mapping[str, Mapping[str, Any] | None] | None = None
    parallel: int | None = None
    directory: Path = field(default_factory=Path.cwd)
    path: Path | None = field(default=None, init=False, compare=False)  #: the file of a loaded job; None for any other
    _checked: JobSpec | Sweep = field(init=False, compare=False)

    def __post_init__(self) -> None:
        directory = Path(self.directory).absolute()
        object.__setattr__(self, "directory", directory)
        values: dict[str, Any] = _plain(self)
        del values["directory"]
        _make_relative(values, "code", directory)
        _make_relative(values, "requirements", directory)
        _make_relative(values.get("train"), "data_dir", directory)
        object.__setattr__(self, "_checked", job_file.sweep.from_values(values))
        object.__setattr__(self, "name", self._checked.name)

    @classmethod
    def load(cls, path: StrPath) -> Job:
        """Return the job of a job file.

        Raises JobSpecError, which lists every mistake with its line; UserError if the file cannot be read.
        """
        from orchestrator.job.rules.env import env_texts  # with yaml: a job in Python needs neither
        from orchestrator.job.source import yaml_source  # this, too

        file = Path(path)
        source = yaml_source.read(read_file(file))
        checked = job_file.sweep.check(source, path=str(file))
        values = job_file.tpu_keys.with_any_of(source).data
        python = source.written.get(("python",), values.get("python"))  # 3.10 is no number
        env = env_texts(values.get("env") or {}, source.written) or None  # numbers as the file writes them
        own = {"name": checked.name, "env": env, "python": python}
        job = cls(**{**_arguments(values), **own}, directory=file.absolute().parent)
        object.__setattr__(job, "path", file.absolute())
        object.__setattr__(job, "_checked", checked)  # whose mistakes have lines
        return job


_SECTIONS: dict[str, type[_Values]] = {
    each.__name__.lower(): each for each in (Tpu, Gke, Access, Train, Limits, Notify, Emulated, Profile)
}


@dataclass(frozen=True, slots=True)
class CheckedJob:
    """A job or a sweep as the rest of tpujob knows it, checked. `path`: that to whose directory its paths are relative."""

    _checked: JobSpec | Sweep
    path: Path
    again_of: str | None = None  # the run that it repeats

    @property
    def name(self) -> str:
        return self._checked.name

    @property
    def is_sweep(self) -> bool:
        return isinstance(self._checked, job_file.sweep.Sweep)


def schema() -> dict[str, Any]:
    """Return the JSON Schema of the job file."""
    return job_file.job_spec.schema()


def _checked(job: Job | CheckedJob) -> JobSpec | Sweep:
    """Return what a job asks for. Raises UserError for anything that is no job, such as the path of its file."""
    if isinstance(job, Job | CheckedJob):
        return job._checked
    if isinstance(job, str | os.PathLike):
        hint = f"a job file is loaded first: Job.load({os.fspath(job)!r})"
    else:
        hint = "make one with Job(command=...), or load a file with Job.load(path)"
    raise UserError(f"a Job is expected, not a {type(job).__name__}", hint=hint)


def is_sweep(job: Job | CheckedJob) -> bool:
    """Return whether it is a sweep. Raises UserError for what is no job."""
    return isinstance(_checked(job), job_file.sweep.Sweep)


def spec_of(job: Job | CheckedJob) -> JobSpec:
    """Return the checked job, as the rest of tpujob knows it. Raises UserError for a sweep."""
    if isinstance(checked := _checked(job), job_file.job_spec.JobSpec):
        return checked
    raise UserError(f"{job.name} is a sweep of {len(checked.variants)} jobs", hint="`Client.sweep` runs it")


def sweep_of(job: Job | CheckedJob) -> Sweep:
    """Return the checked sweep, as the rest of tpujob knows it. Raises UserError for a single job."""
    if isinstance(checked := _checked(job), job_file.sweep.Sweep):
        return checked
    raise UserError(f"{job.name} is one job: it has neither `matrix` nor `variants`", hint="`Client.run` runs it")


def path_of(job: Job | CheckedJob) -> Path:
    """Return the job's file; of a job that has none, a name in the directory to which its paths are relative."""
    return job.path or cast("Job", job).directory / f"Job({job.name})"


def spec_and_path(job: Job | CheckedJob) -> tuple[JobSpec, Path]:
    """Return the checked keys of one job, and its file. Raises UserError for a sweep."""
    return spec_of(job), path_of(job)


def _plain(value: Any) -> Any:
    """Return the value as a job file holds it. What no file can hold stays what it is, for the check to refuse."""
    if isinstance(value, _Values):
        return {key: _plain(each) for key, each in value._set().items()}
    if isinstance(value, list | tuple) and any(isinstance(each, _Values) for each in value):
        return [_plain(each) for each in value]
    if isinstance(value, timedelta):
        return f"{value.total_seconds():.3f}s"
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _make_relative(keys: Any, key: str, directory: Path) -> None:
    """A job file knows only relative directories."""
    if isinstance(keys, dict) and isinstance(path := keys.get(key), str) and Path(path).is_absolute():
        keys[key] = os.path.relpath(path, directory)


def _arguments(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checked keys of a file, or of a section of it, as arguments of a Job, or of the section."""
    found: dict[str, Any] = {name: value for name, value in keys.items() if value is not None}
    for name, section in _SECTIONS.items():
        if name in (found if name == "profile" else keys):  # with nothing below it, the others are not left out
            found[name] = keys[name] if isinstance(keys[name], str | bool) else section(**_arguments(keys[name] or {}))
    if "any_of" in found:
        found["any_of"] = tuple(TpuAlternative(**one) for one in found["any_of"])
    return found


def read_file(path: Path) -> bytes:
    """Return the file's bytes, at most one more than a job file may have. Raises UserError."""
    if path.suffix in PROGRAMS:
        hint = f"`tpujob run -- {PROGRAMS[path.suffix]}{shlex.quote(str(path))}` runs it"
        raise UserError(f"{path} is a program, not a job file", hint=hint)
    try:
        with path.open("rb") as file:
            return file.read(job_file.job_spec.MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise UserError(f"{path}: there is no such file{_meant(path)}") from error
    except IsADirectoryError as error:
        raise UserError(f"{path} is a directory; name a job file") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error


def _meant(path: Path) -> str:
    """Return the job file beside `path` whose name is nearly that one, as a question; else an empty text."""
    with suppress(OSError):
        beside = {each.stem: each for each in path.parent.iterdir() if each.suffix in (".yaml", ".yml")}
        for stem in get_close_matches(path.stem, beside, n=1):
            return f"; did you mean `{printable(str(beside[stem]))}`?"
    return ""
