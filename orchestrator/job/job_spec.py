"""The job file: what to run, and on which TPU. `load` returns a JobSpec for its text, or lists every mistake.

These models are the only definition of the file: validation, the JSON Schema that editors complete from, and the table in
docs/job-file.md all come from them. Pure: the client checks whether directories exist, and points at their lines with
`JobSpec.mistake`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, ValidationError
from pydantic import WithJsonSchema as Shape

from orchestrator import traits
from orchestrator.errors import JobSpecError
from orchestrator.job import json_schema as shapes
from orchestrator.job.json_schema import Section, schema_of
from orchestrator.job.mistakes import Sections, explain, messages, refusal
from orchestrator.job.overrides import Override, apply
from orchestrator.job.rules import env as env_rules
from orchestrator.job.rules import field_rules
from orchestrator.job.rules import notify as notify_rules
from orchestrator.job.rules import tpu as tpu_rules
from orchestrator.job.rules.cross_field_rules import cross_field_problems
from orchestrator.job.shared_keys import AccessSection, GkeSection, NotifySection
from orchestrator.job.source import yaml_source
from orchestrator.job.source.params import Value, resolve
from orchestrator.job.source.yaml_source import Mistake, Path, YamlSource
from orchestrator.job.tpu_keys import Alternative, TpuSection, with_any_of
from orchestrator.job.train_keys import EmulatedSection, ProfileSection, TrainSection
from orchestrator.text import names

MAX_BYTES = yaml_source.MAX_BYTES  # no need to read more of a file than one byte beyond
NAMELESS = "job"  # the name of a job that has neither a name nor a file

_OF_A_SWEEP = ("matrix", "variants", "parallel")
_A_SWEEP = "makes this a sweep, where one job is expected; `tpujob run` (in Python `Client.sweep`) runs its variants"
_NO_SWEEP = "only counts with `matrix:` or `variants:`; add one of them, or remove this"

# `train:` with nothing below it means the default training, not its absence.
_EMPTY_IS_DEFAULT = ("tpu", "gke", "access", "train", "emulated", "env", "limits", "params", "metrics", "data")


class LimitsSection(Section):
    """Limits at which the job ends."""

    max_duration: Annotated[
        float,
        BeforeValidator(field_rules.max_duration),
        Shape({"type": "string", "pattern": r"^\s*(\d+(\.\d+)?\s*[dhms]\s*)+$", "default": "24h"}),
    ] = Field(
        default=86400.0,
        description="The TPU is deleted after this time: 6m to 7d, such as 90m or 1h30m. With `on: gke`: 1m at least.",
    )
    max_cost: Annotated[float | None, BeforeValidator(field_rules.max_cost), Shape(shapes.DOLLARS_OR_NULL)] = Field(
        default=None,
        description="Dollars by the price table: the TPU is deleted before the run has cost more. Left out: no budget.",
    )
    linger: Annotated[float | None, BeforeValidator(field_rules.linger), Shape(shapes.TEXT_OR_NULL)] = Field(
        default=None,
        description="How long results that could not be collected stay on the TPU after the job's end: 1m to 24h. Left out: "
        "1h (emulated: 2m).",
    )
    max_results: Annotated[int | None, BeforeValidator(field_rules.max_results), Shape(shapes.TEXT_OR_NULL)] = Field(
        default=None,
        description="Collect at most this much, of all workers together: 50GB. Left out: as much as fits on the disk.",
    )
    max_log: Annotated[int, BeforeValidator(field_rules.max_log), Shape({"type": "string", "default": "1GB"})] = Field(
        default=10**9,
        description="Keep at most this much of each worker's log: its beginning and its end, and a line that says how much is "
        "left out between them. 1MB at least.",
    )
    stall: Annotated[float | None, BeforeValidator(field_rules.stall), Shape(shapes.TEXT_OR_NULL)] = Field(
        default=None, description="Stop a job that prints nothing for this long: 10s to 24h. Left out: no such limit."
    )

    @property
    def max_duration_s(self) -> float:
        return self.max_duration


class JobSpec(Section):
    """A job that is well-formed; no cloud has seen it yet."""

    name: Annotated[str, AfterValidator(field_rules.job_name)] = Field(
        default="", description="Lower-case letters, digits and `-`, at most 40. Left out: the file's name."
    )
    on: Literal["tpu", "gke", "local"] = Field(
        default="tpu",
        description="`tpu`: a TPU VM that is created for the job. `gke`: pods of a cluster on GKE, by JobSet. `local`: this "
        "machine's GPU or CPU, without any cloud.",
    )
    tpu: TpuSection = Field(default=TpuSection(), description="The TPU to run on.")
    gke: GkeSection = Field(default=GkeSection(), description="The cluster to run on, with `on: gke`.")
    access: AccessSection = Field(
        default=AccessSection(), description="How the workers are reached, where that is not by external addresses."
    )
    train: TrainSection | None = Field(
        default=None, description="The built-in training. A job has either this or `command`."
    )
    command: Annotated[str | None, BeforeValidator(field_rules.shell_text), Shape(shapes.TEXT_OR_TEXTS)] = Field(
        default=None, description="What bash runs on every worker: text, or a list, which is the words of one program."
    )
    setup: Annotated[tuple[str, ...] | None, BeforeValidator(field_rules.commands), Shape(shapes.OR_NULL)] = Field(
        default=None,
        description="Commands that prepare a worker before the job. With `train:` on a TPU they follow the making of its "
        "environment with torch_xla, and `pip` and `python` are that environment's.",
    )
    requirements: Annotated[
        str | tuple[str, ...] | None, BeforeValidator(field_rules.requirements), Shape(shapes.OR_NULL)
    ] = Field(
        default=None,
        description="What to install on each worker before `setup`: a file relative to this one (`requirements.txt`, or "
        "`pyproject.toml` for the dependencies of its project), or a list of packages. In an environment of its own, made with "
        "uv where there is uv, and used again by later runs on the same slice; with `train:` it has torch, too.",
    )
    python: Annotated[str | None, BeforeValidator(field_rules.python), Shape(shapes.VERSION_OR_NULL)] = Field(
        default=None,
        description="The Python of that environment, such as `3.12`: one of the worker's, or downloaded by uv. Left out: its "
        "`python3`.",
    )
    env: Annotated[Mapping[str, str], Shape(shapes.VARIABLES)] = Field(
        default_factory=dict,
        description="Environment variables of the job; numbers and `true` are text as written. `${env:NAME}` is replaced by "
        "your own variable NAME, and its value is hidden in logs.",
    )
    code: Annotated[str, AfterValidator(field_rules.directory)] | None = Field(
        default=None,
        description="Directory to ship, relative to this file, without what .gitignore and .tpujobignore leave out; "
        "the job starts in a copy of it.",
    )
    data: Annotated[Mapping[str, str], Shape(shapes.NAMED_TEXTS)] = Field(
        default_factory=dict,
        description="What each worker fetches from Cloud Storage before `requirements` and `setup`, by the directory that "
        "gets it: `./data: gs://BUCKET/PATH` (docs/data.md). A slice that is held keeps it for its next runs.",
    )
    artifacts: Annotated[tuple[str, ...], BeforeValidator(field_rules.artifacts), Shape(shapes.TEXT_OR_TEXTS)] = Field(
        default=(),
        description="Patterns of files that are results as those in $TPUJOB_ARTIFACTS are: of any size, and a copy of each "
        "worker. What else the job writes in its directory or its home is collected, too, up to 2 GB of a run; "
        "with `only` (or `[only, PATTERN, …]`) it is not.",
    )
    metrics: Annotated[Mapping[str, str], Shape(shapes.NAMED_TEXTS)] = Field(
        default_factory=dict,
        description="Patterns that find figures in the log, by name: regular expressions with one group, around a number, "
        "such as `loss: 'loss ([0-9.]+)'`. Names found in one line belong together; `step` is the step. What the job writes "
        "to `$TPUJOB_ARTIFACTS/metrics.jsonl` needs none.",
    )
    ports: Annotated[tuple[int, ...], BeforeValidator(field_rules.ports), Shape(shapes.PORTS)] = Field(
        default=(),
        description="Ports of worker 0, such as TensorBoard's 6006: while `run` follows the job, each is "
        "http://127.0.0.1:PORT here, or another port if that is in use; of a detached run, by `tpujob forward`. At most 16.",
    )
    tpu_metrics: bool = Field(
        default=True,
        description="Sample HBM use and duty cycle on each worker, every 10 s, in a process beside the job, where the job's "
        "`python3` has libtpu, but not on the emulator; sample the processors and memory of its host; list its packages; and "
        "look whether the job uses the chips (docs/reports.md). With `false`, only the job writes to `$TPUJOB_ARTIFACTS`.",
    )
    bucket: Annotated[str | None, BeforeValidator(field_rules.bucket), Shape(shapes.TEXT_OR_NULL)] = Field(
        default=None,
        description="`gs://BUCKET/PREFIX`: every worker copies its artifacts there too when the job has ended, "
        "and with `on_preemption: restart` its work while it runs.",
    )
    allow_egress: bool = Field(
        default=False,
        description="Allow a TPU in another region than the `bucket` and those of `data`: data between regions is billed by "
        "the TB.",
    )
    copy_while_running: bool = Field(
        default=True,
        description="While `run` follows the job, copy what it has written to this machine, when it changes and at most every "
        "five minutes: up to 2 GB, so that a lost TPU takes little along. Not of a detached run.",
    )
    limits: LimitsSection = Field(default=LimitsSection(), description="What the job may use at most.")
    keep_on_failure: Annotated[float | None, BeforeValidator(field_rules.linger), Shape(shapes.TEXT_OR_NULL)] = Field(
        default=None,
        description="How long the TPU of a job or setup that fails is kept: 1m to 24h, such as 30m. The next run of the "
        "job uses it. Left out: it is released at once.",
    )
    on_preemption: Literal["stop", "restart"] = Field(
        default="stop",
        description="What to do when the TPU is preempted or fails: `restart` gets another one and resumes from the newest "
        "checkpoint.",
    )
    max_restarts: int = Field(default=3, ge=1, le=1000, description="Most restarts, with `on_preemption: restart`.")
    notify: Annotated[NotifySection | None, BeforeValidator(notify_rules.short_form)] = Field(
        default=None,
        description="Who is told when the run starts, loses its TPU, ends and so on (docs/notify.md): a section, or your "
        "variable with the address, as `${env:NAME}`. `off`: nobody. Left out: as your settings say.",
    )
    params: Mapping[str, Value] = Field(
        default_factory=dict,
        description="Parameters of the job: `${params.NAME}` in any value below is replaced by its value, and `compare` has a "
        "column for each.",
    )
    matrix: Mapping[str, tuple[Value, ...]] = Field(
        default_factory=dict,
        description="Makes the file a sweep: parameters with lists of values. There is a run for every combination.",
    )
    variants: Annotated[Mapping[str, Any], Shape(shapes.CHANGES)] = Field(
        default_factory=dict,
        description="Makes the file a sweep: named variants, each with the keys that it changes. Mappings are merged, null "
        "removes a key.",
    )
    parallel: Annotated[int, Field(ge=1, le=64)] = Field(
        default=1, description="How many slices a sweep uses at the same time; each runs one variant after the other."
    )

    _file: str = PrivateAttr("job")
    _source: YamlSource = PrivateAttr(default_factory=YamlSource)

    @property
    def file(self) -> str:
        """Return the job file as messages name it; "" for a job that is written in Python."""
        return self._file

    @property
    def first_word(self) -> str:
        """Return the first word of a `command:` that is a list; "" for text, and for a job without a command."""
        words = self._source.data.get("command")
        return str(words[0]) if isinstance(words, list) else ""

    def mistake(self, path: Path, text: str) -> str:
        """Return a message about a place of the file, for checks that need more than it: `job.yaml:7: code: ...`."""
        return messages(self._file, self._source, [Mistake(self._source.line(path), path, text)])[0]

    def with_max_duration(self, seconds: float) -> JobSpec:
        """Return the same job with another time limit."""
        return self.model_copy(update={"limits": self.limits.model_copy(update={"max_duration": seconds})})

    def with_keep_on_failure(self, seconds: float) -> JobSpec:
        """Return the same job, whose slice is kept for so long when it fails."""
        return self.model_copy(update={"keep_on_failure": seconds})

    def warnings(self) -> list[str]:
        """Return messages about what is allowed and rarely intended."""
        found = list(env_rules.env_warnings(self.env))
        if unused := traits.checks_on(self.on).UNUSED:
            found += [((key,), f"has no effect with `on: {self.on}`") for key in unused if key in self.model_fields_set]
        else:
            found += tpu_rules.tpu_warnings(self.tpu.model_dump(exclude_unset=True))
        return [self.mistake(path, text) for path, text in found]


def load(text: str | bytes, *, path: str, overrides: Iterable[Override] = ()) -> JobSpec:
    """Return the job that `text` describes, changed by `overrides`. Raises JobSpecError.

    `path` is for messages, and names a job without a name.
    """
    return check(apply(yaml_source.read(text), overrides), path=path)


def from_values(data: Mapping[str, Any], overrides: Iterable[Override] = ()) -> JobSpec:
    """Return the job that these values describe. Raise JobSpecError: its lines name a field, and neither file nor line."""
    return check(apply(yaml_source.source_of(data), overrides), path="")


def check(source: YamlSource, *, path: str) -> JobSpec:
    """Return the job for YAML that has been read already. Raises JobSpecError with every mistake, each with its line."""
    if several := next((key for key in _OF_A_SWEEP if key in source.data), None):
        text = _NO_SWEEP if several == "parallel" else _A_SWEEP
        raise refusal(path, messages(path, source, [Mistake(source.line((several,)), (several,), text)]))
    source = resolve(with_any_of(source))
    mistakes = list(source.mistakes)
    data = _with_sections(source.data)
    if isinstance(env := data.get("env"), Mapping):
        data["env"] = env_rules.env_texts(env, source.written)
    if isinstance(data.get("python"), float):  # 3.10 is no number
        data["python"] = source.written.get(("python",), data["python"])
    spec: JobSpec | None = None
    if () not in source.invalid:
        try:
            spec = JobSpec.model_validate(data)
        except ValidationError as error:
            mistakes += explain(error, source, _sections())
        mistakes += list(_unreported(cross_field_problems(data), source, mistakes))
    if mistakes or spec is None:
        raise refusal(path, messages(path, source, mistakes))
    if not spec.name:
        spec = spec.model_copy(update={"name": names.to_job_name(PurePath(path).stem or NAMELESS)})
    spec._file, spec._source = path, source
    return spec


def resolve_env(spec: JobSpec, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the job's environment with each `${env:NAME}` replaced.

    Raises JobSpecError if a variable is not set, or the values are longer than Linux takes. The result may hold secrets: never
    print or store it.
    """
    mistakes: list[str] = []
    for name, value in spec.env.items():
        for variable in dict.fromkeys(env_rules.ENV_REFERENCE.findall(value)):
            if variable not in environ:
                text = f"your variable {variable} is not set; export it, or remove this"
                mistakes.append(spec.mistake(("env", name), text))
    address = spec.notify and notify_rules.variable_of(spec.notify.url)
    if address and address not in environ:
        mistakes.append(spec.mistake(("notify",), f"your variable {address} is not set; export it, or remove this"))
    elif address and (problem := notify_rules.url_problem(environ[address].strip())):
        mistakes.append(spec.mistake(("notify",), f"your variable {address} {problem}"))
    if mistakes:
        raise JobSpecError(mistakes)
    reference = env_rules.ENV_REFERENCE
    env = {name: reference.sub(lambda found: environ[found[1]], value) for name, value in spec.env.items()}
    sizes = {name: len(f"{name}={value}\0".encode("utf-8", "surrogateescape")) for name, value in env.items()}
    for name, size_bytes in sizes.items():
        if size_bytes > env_rules.MAX_BYTES:
            text = f"has {size_bytes:,} bytes, and Linux takes {env_rules.MAX_BYTES:,}; ship it as a file in `code:`"
            mistakes.append(spec.mistake(("env", name), text))
    if not mistakes and (in_all := sum(sizes.values())) > (most := env_rules.MAX_BYTES_IN_ALL):
        largest = max(sizes, key=sizes.__getitem__)
        text = f"has {in_all:,} bytes in all, and at most {most:,} start a program ({largest} has {sizes[largest]:,})"
        mistakes.append(spec.mistake(("env",), f"{text}; ship the largest as files in `code:`"))
    if mistakes:
        raise JobSpecError(mistakes)
    return env


def schema() -> dict[str, Any]:
    """Return the JSON Schema of the file, for editors."""
    return schema_of(JobSpec.model_json_schema(), empty_is_default=_EMPTY_IS_DEFAULT)


def _with_sections(data: Mapping[str, Any]) -> dict[str, Any]:
    filled = {key: {} if value is None and key in _EMPTY_IS_DEFAULT else value for key, value in data.items()}
    if isinstance(train := filled.get("train"), Mapping) and "emulated" in train and train["emulated"] is None:
        filled["train"] = {**train, "emulated": {}}
    return filled


def _unreported(found: Iterable[tuple[Path, str]], source: YamlSource, reported: list[Mistake]) -> Iterator[Mistake]:
    """Mistakes at places without one yet: a second message about one value seldom helps."""
    places = {mistake.path for mistake in reported}
    unknown = {str(path[0]) for path in places if len(path) == 1}
    for path, text in found:
        redundant = path == () and unknown  # the unknown key may be a misspelt `command:`, and has its own line
        if path not in places and not redundant and not source.is_invalid(path):
            places.add(path)
            yield Mistake(source.line(path), path, text)


def _sections() -> Sections:
    return {
        (): list(JobSpec.model_fields),
        ("tpu",): list(TpuSection.model_fields),
        ("tpu", "any_of"): list(Alternative.model_fields),
        ("train",): list(TrainSection.model_fields),
        ("train", "emulated"): list(EmulatedSection.model_fields),
        ("train", "profile"): list(ProfileSection.model_fields),
        ("gke",): list(GkeSection.model_fields),
        ("access",): list(AccessSection.model_fields),
        ("limits",): list(LimitsSection.model_fields),
        ("notify",): list(NotifySection.model_fields),
    }
