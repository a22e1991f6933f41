"""The `train:` section of a job file: the built-in training, or one of the job's own."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic import WithJsonSchema as Shape

from orchestrator.job.json_schema import ALL_OR_NUMBER, Section
from orchestrator.job.rules import field_rules

Count = Annotated[int, Field(ge=1, le=10**9)]


class EmulatedSection(Section):
    """A smaller training, used only on the emulated Cloud TPU, and recorded in log and artifacts."""

    cores: Annotated[int, Field(ge=1, le=64)] | None = Field(
        default=None, description="Processes that stand for all cores of the TPU."
    )
    examples: Count | None = Field(default=None, description="Use only so many training examples.")
    test_examples: Count | None = Field(default=None, description="Evaluate on only so many test examples.")
    epochs: Count | None = Field(default=None, description="Train for so many epochs.")


class ProfileSection(Section):
    """A profiler traces some steps of the built-in training on worker 0; the trace is an artifact (docs/reports.md)."""

    start: int = Field(default=10, ge=1, le=10**9, description="First step to trace, from 1 over all epochs.")
    steps: int = Field(default=5, ge=1, le=100, description="Steps to trace. They are left out of all step times.")


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
        "and which has not been run on a TPU yet. `auto`: a TPU if there is one (with torch_xla), else a GPU, else the CPU. "
        "`none`: no PyTorch; one process on each worker calls the `entry` as `function(None, run)`.",
    )
    model: Literal["mnist_cnn", "alexnet", "mlp"] = Field(
        default="mnist_cnn", description="The network: `mnist_cnn` is the CNN of the PyTorch MNIST example."
    )
    dataset: Literal["mnist", "fashion-mnist", "synthetic", "idx"] = Field(
        default="mnist", description="Data set to learn. `idx`: any set of IDX files, in `data_dir`."
    )
    data_dir: Annotated[str, AfterValidator(field_rules.directory)] | None = Field(
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
    cores: Annotated[Literal["all"] | int, BeforeValidator(field_rules.cores), Shape(ALL_OR_NUMBER)] = Field(
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
    profile: ProfileSection | None = Field(
        default=None, description="Trace some steps with a profiler. Left out: none."
    )
    emulated: EmulatedSection = Field(default=EmulatedSection(), description="Overrides on the emulated Cloud TPU.")
