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

from orchestrator.core.jobfile import json_schema as shapes
from orchestrator.core.jobfile import value_rules, values, yaml_source
from orchestrator.core.jobfile.json_schema import Section, schema_of
from orchestrator.core.jobfile.mistakes import Sections, explain
from orchestrator.core.jobfile.overrides import Override, apply
from orchestrator.core.jobfile.params import Value, resolve
from orchestrator.core.jobfile.tpu_keys import Alternative, TpuSection, with_any_of, written_path
from orchestrator.core.jobfile.yaml_source import Mistake, Path, YamlSource
from orchestrator.core.text import names
from orchestrator.core.text.names import shown
from orchestrator.errors import JobSpecError

MAX_BYTES = yaml_source.MAX_BYTES  # no need to read more of a file than one byte beyond
MAX_REPORTED = 20
NAMELESS = "job"  # the name of a job that has neither a name nor a file

_OF_A_CLOUD = ("tpu", "allow_egress", "keep_on_failure", "on_preemption", "max_restarts")

_OF_A_SWEEP = ("matrix", "variants", "parallel")
_A_SWEEP = "makes this a sweep, where one job is expected; `tpujob run` (in Python `Client.sweep`) runs its variants"
_NO_SWEEP = "only counts with `matrix:` or `variants:`; add one of them, or remove this"

# `train:` with nothing below it means the default training, not its absence.
_EMPTY_IS_DEFAULT = ("tpu", "train", "emulated", "env", "limits", "params", "metrics")

Count = Annotated[int, Field(ge=1, le=10**9)]
Directory = Annotated[str, AfterValidator(value_rules.directory)]


class EmulatedSection(Section):
    """A smaller training, used only on the emulated Cloud TPU, and recorded in log and artifacts."""

    cores: Annotated[int, Field(ge=1, le=64)] | None = Field(
        default=None, description="Processes that stand for all cores of the TPU."
    )
    examples: Count | None = Field(default=None, description="Use only so many training examples.")
    test_examples: Count | None = Field(default=None, description="Evaluate on only so many test examples.")
    epochs: Count | None = Field(default=None, description="Train for so many epochs.")


class TrainSection(Section):
    """The built-in training, an image classifier on every core of the slice, or (`entry:`) one of the job's own."""

    entry: Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$")] | None = Field(
        default=None,
        description="`module:function` in `code:`, called as `function(backend, run)` in place of the built-in training.",
    )
    options: dict[str, Any] | None = Field(default=None, description="Options of the `entry`, in `run.options`.")
    backend: Literal["xla", "cuda", "cpu", "tpu", "auto", "none"] = Field(
        default="xla",
        description="`xla`: torch_xla. `cuda`, `cpu`: PyTorch's own. `tpu`: TorchTPU 0.2.0, which needs Python 3.11 on the VM "
        "and which has not been run on a TPU yet. `auto`: a TPU if there is one, else a GPU, else the CPU. `none`: no PyTorch; "
        "one process on each worker calls the `entry` as `function(None, run)`.",
    )
    model: Literal["mnist_cnn", "alexnet", "mlp"] = Field(
        default="mnist_cnn", description="The network: `mnist_cnn` is the CNN of the PyTorch MNIST example."
    )
    dataset: Literal["mnist", "fashion-mnist", "synthetic", "idx"] = Field(
        default="mnist", description="Data set to learn. `idx`: any set of IDX files, in `data_dir`."
    )
    data_dir: Directory | None = Field(
        default=None,
        description="Directory with the IDX files, relative to this file; shipped with the job. Left out: download.",
    )
    fallback: Literal["sample", "synthetic"] | None = Field(
        default=None,
        description="What to learn if the data set cannot be downloaded. `sample`: 6,000 real images of MNIST that are shipped "
        "with the job, tested on 2,000. `synthetic`: generated digits, or that sample where it has as many images as "
        "`examples` asks for. Left out: fail (on the emulated Cloud TPU, MNIST's is `sample`).",
    )
    epochs: int = Field(default=5, ge=1, le=100_000, description="Passes over the training examples.")
    batch_size: int = Field(
        default=128, ge=1, le=1_000_000, description="Examples per step over all cores together (the global batch)."
    )
    cores: Annotated[Literal["all"] | int, BeforeValidator(value_rules.cores), Shape(shapes.ALL_OR_NUMBER)] = Field(
        default="all", description="`all` cores of the slice, or a number of them."
    )
    lr: Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)] = Field(
        default=0.05, description="Peak learning rate: reached after a fifth of the run, zero at its end."
    )
    momentum: float = Field(default=0.9, ge=0, lt=1, description="Momentum of `sgd`.")
    optimizer: Literal["sgd", "adam"] = Field(default="sgd", description="Optimizer.")
    seed: int = Field(default=1, ge=0, lt=2**32, description="Same seed, same losses.")
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        default="fp32", description="`bf16` and `fp16` use autocast; `fp16` only on a GPU, where it scales the loss."
    )
    image_size: Annotated[int, Field(ge=1, le=4096)] | None = Field(
        default=None,
        description="Pixels of a side; resized on the device. Left out: the size that the network expects.",
    )
    examples: Count | None = Field(default=None, description="Use only so many training examples. Left out: all.")
    test_examples: Count | None = Field(default=None, description="Evaluate on only so many. Left out: all.")
    eval: bool = Field(default=True, description="Measure accuracy on all test examples.")
    checkpoint: bool = Field(default=True, description="Write the trained weights, and the state to resume from.")
    checkpoint_every: Annotated[str, Field(pattern=r"^\s*0*[1-9]\d{0,8}\s*(step|epoch|s|m|h)s?\s*$")] = Field(
        default="1 epoch", description="A number of epochs, steps or seconds: `1 epoch`, `200 steps`, `30 s`."
    )
    keep_checkpoints: int = Field(
        default=1, ge=1, le=1000, description="Number of checkpoints to keep, the newest ones."
    )
    resume: bool = Field(default=True, description="Resume an unfinished training in the same directory.")
    num_workers: Annotated[int, Field(ge=0, le=512)] | None = Field(
        default=None, description="Processes of each DataLoader of an `entry`. Left out: from the host's cores."
    )
    timing: Literal["stamped", "drained"] = Field(
        default="stamped", description="`drained` waits for the device after each step, for tables with a spread."
    )
    emulated: EmulatedSection = Field(default=EmulatedSection(), description="Overrides on the emulated Cloud TPU.")


class LimitsSection(Section):
    """Limits at which the job ends."""

    max_duration: Annotated[
        float,
        BeforeValidator(value_rules.max_duration),
        Shape({"type": "string", "pattern": r"^\s*(\d+(\.\d+)?\s*[dhms]\s*)+$", "default": "24h"}),
    ] = Field(default=86400.0, description="The TPU is deleted after this time: 6m to 7d, such as 90m or 1h30m.")
    max_cost: Annotated[float | None, BeforeValidator(value_rules.max_cost), Shape(shapes.DOLLARS_OR_NULL)] = Field(
        default=None,
        description="Dollars by the price table: the TPU is deleted before the run has cost more. Left out: no budget.",
    )
    linger: Annotated[float | None, BeforeValidator(value_rules.linger), Shape(shapes.TEXT_OR_NULL)] = Field(
        default=None,
        description="How long results that could not be collected stay on the TPU after the job's end: 1m to 24h. Left out: "
        "1h (emulated: 2m).",
    )
    max_results: Annotated[int | None, BeforeValidator(value_rules.max_results), Shape(shapes.TEXT_OR_NULL)] = Field(
        default=None,
        description="Collect at most this much, of all workers together: 50GB. Left out: as much as fits on the disk.",
    )
    stall: Annotated[float | None, BeforeValidator(value_rules.stall), Shape(shapes.TEXT_OR_NULL)] = Field(
        default=None, description="Stop a job that prints nothing for this long: 10s to 24h. Left out: no such limit."
    )

    @property
    def max_duration_s(self) -> float:
        return self.max_duration


class JobSpec(Section):
    """A job that is well-formed; no cloud has seen it yet."""

    name: Annotated[str, AfterValidator(value_rules.job_name)] = Field(
        default="", description="Lower-case letters, digits and `-`, at most 40. Left out: the file's name."
    )
    on: Literal["tpu", "local"] = Field(
        default="tpu",
        description="`tpu`: a TPU VM that is created for the job. `local`: this machine's GPU or CPU, without any cloud.",
    )
    tpu: TpuSection = Field(default=TpuSection(), description="The TPU to run on.")
    train: TrainSection | None = Field(
        default=None, description="The built-in training. A job has either this or `command`."
    )
    command: Annotated[str | None, BeforeValidator(value_rules.shell_text), Shape(shapes.TEXT_OR_TEXTS)] = Field(
        default=None, description="What bash runs on every worker: text, or a list of arguments."
    )
    setup: Annotated[tuple[str, ...] | None, BeforeValidator(value_rules.commands), Shape(shapes.OR_NULL)] = Field(
        default=None,
        description="Commands that prepare a worker before the job. With `train:` on a TPU they follow the making of its "
        "environment with torch_xla, and `pip` and `python` are that environment's.",
    )
    requirements: Annotated[
        str | tuple[str, ...] | None, BeforeValidator(value_rules.requirements), Shape(shapes.OR_NULL)
    ] = Field(
        default=None,
        description="What to install on each worker before `setup`: a file relative to this one (`requirements.txt`, or "
        "`pyproject.toml` for the dependencies of its project), or a list of packages. In an environment of its own, made with "
        "uv where there is uv, and used again by later runs on the same slice; with `train:` it has torch, too.",
    )
    python: Annotated[str | None, BeforeValidator(value_rules.python), Shape(shapes.VERSION_OR_NULL)] = Field(
        default=None,
        description="The Python of that environment, such as `3.12`: one of the worker's, or downloaded by uv. Left out: its "
        "`python3`.",
    )
    env: Annotated[Mapping[str, str], Shape(shapes.VARIABLES)] = Field(
        default_factory=dict,
        description="Environment variables of the job; numbers and `true` are text as written. `${env:NAME}` is replaced by "
        "your own variable NAME, and its value is hidden in logs.",
    )
    code: Directory | None = Field(
        default=None,
        description="Directory to ship, relative to this file, without what .gitignore and .tpujobignore leave out; "
        "the job starts in a copy of it.",
    )
    artifacts: Annotated[tuple[str, ...], Field(strict=False)] = Field(
        default=(), description="Patterns of files to collect besides those that the job writes to $TPUJOB_ARTIFACTS."
    )
    metrics: Annotated[Mapping[str, str], Shape(shapes.VARIABLES)] = Field(
        default_factory=dict,
        description="Patterns that find figures in the log, by name: regular expressions with one group, around a number, "
        "such as `loss: 'loss ([0-9.]+)'`. Names found in one line belong together; `step` is the step. What the job writes "
        "to `$TPUJOB_ARTIFACTS/metrics.jsonl` needs none.",
    )
    bucket: Annotated[str | None, BeforeValidator(value_rules.bucket), Shape(shapes.TEXT_OR_NULL)] = Field(
        default=None,
        description="`gs://BUCKET/PREFIX`: every worker copies its artifacts there too when the job has ended.",
    )
    allow_egress: bool = Field(
        default=False,
        description="Allow a TPU in another region than the `bucket`: data between regions is billed by the TB.",
    )
    limits: LimitsSection = Field(default=LimitsSection(), description="What the job may use at most.")
    keep_on_failure: Annotated[
        float | None, BeforeValidator(value_rules.keep_on_failure), Shape(shapes.TEXT_OR_NULL)
    ] = Field(
        default=None,
        description="How long the TPU of a job or setup that fails is kept: 1m to 24h, such as 30m. The next run of the job "
        "uses it. Left out: it is released at once.",
    )
    on_preemption: Literal["stop", "restart"] = Field(
        default="stop",
        description="What to do when the TPU is preempted or fails: `restart` gets another one and resumes from the newest "
        "checkpoint.",
    )
    max_restarts: int = Field(default=3, ge=1, le=1000, description="Most restarts, with `on_preemption: restart`.")
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

    def mistake(self, path: Path, text: str) -> str:
        """Return a message about a place of the file, for checks that need more than it: `job.yaml:7: code: ...`."""
        return messages(self._file, self._source, [Mistake(self._source.line(path), path, text)])[0]

    def with_max_duration(self, seconds: float) -> JobSpec:
        """Return the same job with another time limit."""
        return self._with(limits=self.limits.model_copy(update={"max_duration": seconds}))

    def with_keep_on_failure(self, seconds: float) -> JobSpec:
        """Return the same job, whose slice is kept for so long when it fails."""
        return self._with(keep_on_failure=seconds)

    def _with(self, **changes: Any) -> JobSpec:
        changed = self.model_copy(update=changes)
        changed._file, changed._source = self._file, self._source
        return changed

    def warnings(self) -> list[str]:
        """Return messages about what is allowed and rarely intended."""
        found = list(value_rules.env_warnings(self.env))
        if self.on == "local":
            unused = [key for key in _OF_A_CLOUD if key in self.model_fields_set]
            found += [((key,), "has no effect with `on: local`") for key in unused]
        return [self.mistake(path, text) for path, text in found]


def load(text: str | bytes, *, path: str, overrides: Iterable[Override] = ()) -> JobSpec:
    """Return the job that `text` describes, changed by `overrides`. Raises JobSpecError.

    `path` is for messages, and names a job without a name.
    """
    source = yaml_source.read(text)
    return check(apply(source, overrides), path=path)


def from_values(data: Mapping[str, Any], overrides: Iterable[Override] = ()) -> JobSpec:
    """Return the job that these values describe. Raise JobSpecError: its lines name a field, and neither file nor line."""
    return check(apply(values.source_of(data), overrides), path="")


def check(source: YamlSource, *, path: str) -> JobSpec:
    """Return the job for YAML that has been read already. Raises JobSpecError with every mistake, each with its line."""
    if several := next((key for key in _OF_A_SWEEP if key in source.data), None):
        text = _NO_SWEEP if several == "parallel" else _A_SWEEP
        raise refusal(path, messages(path, source, [Mistake(source.line((several,)), (several,), text)]))
    source = resolve(with_any_of(source))
    mistakes = list(source.mistakes)
    data = _with_sections(source.data)
    if isinstance(env := data.get("env"), Mapping):
        data["env"] = value_rules.env_texts(env, source.written)
    if isinstance(data.get("python"), float):  # 3.10 is no number
        data["python"] = source.written.get(("python",), data["python"])
    spec: JobSpec | None = None
    if () not in source.invalid:
        try:
            spec = JobSpec.model_validate(data)
        except ValidationError as error:
            mistakes += explain(error, source, _sections())
        mistakes += list(_unreported(value_rules.cross_field_problems(data), source, mistakes))
    if mistakes or spec is None:
        raise refusal(path, messages(path, source, mistakes))
    if not spec.name:
        spec = spec.model_copy(update={"name": names.to_job_name(PurePath(path).stem or NAMELESS)})
    spec._file, spec._source = path, source
    return spec


def refusal(path: str, lines: list[str]) -> JobSpecError:
    """Return the error of a file with these mistakes."""
    where = f"{path}: " if path else ""
    more = [f"{where}and {len(lines) - MAX_REPORTED} more mistakes"] if len(lines) > MAX_REPORTED else []
    hint = f"`tpujob plan {path}` checks a file without creating anything" if path else None
    return JobSpecError(lines[:MAX_REPORTED] + more, hint=hint)


def resolve_env(spec: JobSpec, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the job's environment with each `${env:NAME}` replaced. Raises JobSpecError if a variable is not set.

    The result may hold secrets: never print or store it.
    """
    missing: list[str] = []
    for name, value in spec.env.items():
        for variable in dict.fromkeys(value_rules.ENV_REFERENCE.findall(value)):
            if variable not in environ:
                text = f"your variable {variable} is not set; export it, or remove this"
                missing.append(spec.mistake(("env", name), text))
    if missing:
        raise JobSpecError(missing)
    reference = value_rules.ENV_REFERENCE
    return {name: reference.sub(lambda found: environ[found[1]], value) for name, value in spec.env.items()}


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
        ("limits",): list(LimitsSection.model_fields),
    }


def messages(file: str, source: YamlSource, mistakes: Iterable[Mistake]) -> list[str]:
    """Return the mistakes as the user reads them, in the order of their lines: `job.yaml:7: tpu.zone: ...`.

    What an option has set comes last, and names it: `--set tpu.zone=x: ...`.
    """
    of_file, of_options = [], []
    for mistake in sorted(mistakes, key=lambda mistake: mistake.line):
        parts = written_path(source, mistake.path)
        field = "".join(f"[{part}]" if isinstance(part, int) else f".{shown(part)}" for part in parts).lstrip(".")
        text = f"{field}: {mistake.text}" if field else mistake.text
        if (found := source.option(mistake.path)) is not None:
            place, option = found
            of_options.append(f"{option}: {mistake.text if place == mistake.path else text}")
        else:
            of_file.append(f"{file}:{mistake.line}: {text}" if file else text)
    return [*of_file, *of_options]
