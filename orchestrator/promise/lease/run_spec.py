"""What a run was to do, as its record in the ledger says it: typed, whichever tpujob wrote it. Pure.

The record is the resolved job as JSON values, and beside its keys those that tpujob adds: `secret_sources`, `sweep`, `cluster`.
What is missing in it, or has a type that this tpujob does not expect, reads as the default; keys that it does not know stay in
`values`. (Not the models of `job`: they refuse both, and would make each command that only reads import pydantic.)
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, is_dataclass, replace
from enum import StrEnum
from functools import cache
from typing import Any, Self, TypeVar, get_args, get_origin, get_type_hints

from orchestrator.promise.lease.access import NO_WISH, AccessWish

T = TypeVar("T")


@dataclass(frozen=True)
class FunctionCall:
    """The options of an `entry` that calls a function of Python."""

    function: str | None = None


@dataclass(frozen=True)
class TrainRecord:
    """The `train:` section. `backend`: `none` is no PyTorch; `cores`: a number, or `all`."""

    entry: str | None = None
    options: FunctionCall = FunctionCall()
    backend: str = "none"
    model: str | None = None
    dataset: str | None = None
    batch_size: int | None = None
    precision: str | None = None
    cores: int | str = "all"


NO_TRAINING = TrainRecord()


@dataclass(frozen=True)
class TpuRecord:
    """The `tpu:` section: one request, or several in `any_of`."""

    accelerator: str | None = None
    zone: tuple[str, ...] = ()
    any_of: tuple[Any, ...] = ()

    @property
    def place(self) -> tuple[str | None, str | None]:
        """The type and the zone or region, each None if there are several."""
        if self.any_of:
            return None, None
        return self.accelerator, self.zone[0] if len(self.zone) == 1 else None


@dataclass(frozen=True)
class LimitsRecord:
    """The `limits:` section, in seconds and bytes."""

    max_duration: float | None = None
    max_results: int | None = None
    max_log: int | None = None
    linger: float | None = None


@dataclass(frozen=True)
class NotifyWish:
    """The `notify:` section, of a job or of the settings: who is told of which events. None: the section does not say.

    `url`: an address, which is a secret and which no record has, or `${env:NAME}`. No events at all: nobody is told.
    """

    url: str | None = field(default=None, repr=False)
    command: str | None = None
    on: tuple[str, ...] | None = None

    @property
    def receives(self) -> bool:
        """Whether the section says who is told."""
        return self.url is not None or self.command is not None


@dataclass(frozen=True)
class QueueWish:
    """The `queue:` section of the settings. `store`: a bucket; None: this machine keeps the queue. `per_s`: of `max_cost`."""

    store: str | None = None
    slots: int = 1
    max_cost: float | None = None
    per_s: float = 30 * 86400.0


@dataclass(frozen=True)
class SweepPart:
    """Of which sweep a run is, and which of its variants; all None: of none."""

    id: str | None = None
    name: str | None = None
    number: int | None = None
    variant: str | None = None
    key: str | None = None


@dataclass(frozen=True)
class ClusterPart:
    """What a run on a cluster is made of there. `pods` None: it is not on a cluster."""

    phases: tuple[str, ...] = ("main",)
    pods: int | None = None
    code_object: str | None = None


@dataclass(frozen=True)
class RunSpec:
    """What commands need to know of the job of a run, later. `values`: all of the record."""

    command: str | None = None
    train: TrainRecord | None = None
    tpu: TpuRecord = TpuRecord()
    access: AccessWish = NO_WISH
    limits: LimitsRecord = LimitsRecord()
    artifacts: tuple[str, ...] = ()
    metrics: dict[str, str] = field(default_factory=dict)
    ports: tuple[int, ...] = ()
    tpu_metrics: bool = True
    bucket: str | None = None
    params: dict[str, Any] = field(default_factory=dict)
    notify: NotifyWish | None = None
    secret_sources: tuple[str, ...] = ()  # names of variables
    sweep: SweepPart = SweepPart()
    queued: bool = False  # a queue makes its attempts
    cluster: ClusterPart = ClusterPart()
    values: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, values: object) -> Self:
        """Return what these JSON values say."""
        return replace(read(cls, values), values=values if isinstance(values, dict) else {})

    def having(self, **more: Any) -> Self:
        """Return the same with more keys, or other values of them."""
        return self.of({**self.values, **more})


def read(kind: type[T], values: object) -> T:
    """Return this dataclass with what the JSON values have of its fields, in their types; else the defaults.

    Raises TypeError where a field without a default is missing.
    """
    given = values if isinstance(values, dict) else {}
    fields: Any = _fields(kind)  # type: ignore[arg-type]
    found = {name: typed(given[name]) for name, typed in fields if name in given}
    return kind(**{name: value for name, value in found.items() if value is not _OTHER})


_OTHER = object()  # a value of another type
_Typed = Callable[[Any], Any]


@cache
def _fields(kind: Any) -> list[tuple[str, _Typed]]:
    return [(name, _typed(hint)) for name, hint in get_type_hints(kind).items()]


def _typed(hint: Any) -> _Typed:
    """Return what makes a value of this type of a JSON value, or _OTHER where it has another type."""
    origin, each = get_origin(hint), [_typed(inner) for inner in get_args(hint)]
    if is_dataclass(hint):
        return lambda value: read(hint, value) if isinstance(value, dict) else _OTHER  # type: ignore[arg-type]
    if origin is tuple:
        return lambda value: _all(map(each[0], value)) if isinstance(value, list | tuple) else _OTHER
    if origin is dict:
        return lambda value: (
            value if isinstance(value, dict) and _all(map(each[1], value.values())) is not _OTHER else _OTHER
        )
    if each:
        return lambda value: next((found for one in each if (found := one(value)) is not _OTHER), _OTHER)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return lambda value: hint(value) if value in [*hint] else _OTHER
    if hint is float:
        return lambda value: float(value) if type(value) in (int, float) else _OTHER
    return lambda value: value if hint is Any or type(value) is hint else _OTHER


def _all(values: Iterable[Any]) -> Any:
    found = tuple(values)
    return _OTHER if any(each is _OTHER for each in found) else found
