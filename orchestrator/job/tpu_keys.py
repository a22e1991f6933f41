"""The `tpu:` section of a job file: one request, or several alternatives and how to choose among them.

A list in place of the section is read as if it were below `any_of:`; mistakes are reported where the file has them.
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic import WithJsonSchema as Shape

from orchestrator import catalog
from orchestrator.capacity.provisioning import Provisioning
from orchestrator.job.json_schema import DOLLARS_OR_NULL, OR_NULL, TEXT, Section
from orchestrator.job.rules import tpu as rules
from orchestrator.job.source.yaml_source import Path, YamlSource


class Alternative(Section):
    """One TPU that the job accepts. Keys that it leaves out are those of `tpu:` beside `any_of`."""

    accelerator: Annotated[str, BeforeValidator(rules.accelerator_text)] = Field(
        default="v5litepod-8",
        description="Accelerator type, as in the Cloud TPU API; `v5e-8`, `v5e-2x4` and `ct5lp-hightpu-8t` mean `v5litepod-8`. "
        "With `on: gke` also TPU7x, `tpu7x-16`, by its TensorCores.",
    )
    zone: Annotated[tuple[str, ...], BeforeValidator(rules.places), Shape(OR_NULL)] = Field(
        default=(),
        description="Zone, region (its zones that offer the type) or a list of them (or `a, b`), tried in order. `any`: "
        "every zone that offers the type, the cheapest first. Left out: the zone of your settings, else `any`.",
    )
    runtime: Annotated[str, AfterValidator(rules.runtime)] | None = Field(
        default=None, description="Runtime version (the VM image). Left out: the usual one for the accelerator type."
    )
    provisioning: Annotated[
        Literal["on-demand", "spot", "reserved", "flex-start", "queued"] | None,
        Shape({"enum": [*map(str, Provisioning)]}),
    ] = Field(
        default=None,
        description="`spot`: cheaper, and may be preempted at any time. `reserved`: from your reservation. `flex-start`: "
        "queued, up to 7 days, ended by the cloud. `queued`: on-demand, through the queue (not with `on: gke`). Left out: "
        "`on-demand`.",
    )
    spot: bool = Field(default=False, description="`true` is short for `provisioning: spot`.")
    queue: bool = Field(
        default=False,
        description="Use a queued resource, which waits for capacity, also for spot and reserved. With `on: gke`: flex-start "
        "nodes that are asked for together, by a ProvisioningRequest of Kueue.",
    )
    unlisted: bool = Field(default=False, description="Allow types and zones that are newer than tpujob's own table.")

    @property
    def effective_provisioning(self) -> Provisioning:
        """`provisioning`, or what `spot` is short for."""
        if self.provisioning is not None:
            return Provisioning(self.provisioning)
        return Provisioning.SPOT if self.spot else Provisioning.ON_DEMAND

    @property
    def runtime_version(self) -> str:
        """The job's own runtime, else the default of the accelerator type; empty if it has none."""
        kind = catalog.lookup(self.accelerator)
        return self.runtime or (kind.default_runtime if kind else "")


class TpuSection(Alternative):
    """The TPU to request: one, or `any_of` several. A list in place of this section is short for its `any_of`."""

    slices: int = Field(
        default=1,
        ge=1,
        le=rules.MAX_SLICES,
        description="How many slices of this type the job uses at once (multislice), with `on: gke` only.",
    )
    any_of: Annotated[tuple[Alternative, ...], Field(strict=False)] = Field(
        default=(),
        description="Alternatives, each with the keys from `accelerator` to `unlisted`; a key that one leaves out is "
        "inherited from beside `any_of`.",
    )
    order: Literal["as-listed", "cheapest", "fastest"] = Field(
        default="as-listed",
        description="Order in which candidates are tried. `cheapest`: by price per hour, granted ones first, unknown prices "
        "last. `fastest`: by expected waiting: on-demand, reserved and granted, then spot, then queued.",
    )
    max_price_per_hour: Annotated[float | None, BeforeValidator(rules.max_price), Shape(DOLLARS_OR_NULL)] = Field(
        default=None,
        description="Dollars: candidates that cost more by the price table, or have no price, are left out.",
    )
    wait: Annotated[float, BeforeValidator(rules.wait), Shape({"anyOf": [TEXT, {"const": 0}], "default": 0})] = Field(
        default=0.0,
        description="How long to wait for capacity, at each attempt: up to 7d, such as 6h. `0`: every candidate is tried once, "
        "and a queued one waits for up to 1h.",
    )
    race: bool = Field(
        default=False,
        description="Request all queued candidates at once; the first that is ready wins, the others are deleted.",
    )

    @property
    def alternatives(self) -> tuple[Alternative, ...]:
        """Each alternative with what it inherits; one, this section itself, without `any_of`."""
        return tuple(self._inherited(each) for each in self.any_of) or (self,)

    def _inherited(self, own: Alternative) -> Alternative:
        given = set(own.model_fields_set)
        if given & rules.PROVISIONING_KEYS:
            given |= rules.PROVISIONING_KEYS  # two keys for one thing
        return Alternative.model_construct(
            own.model_fields_set | self.model_fields_set,
            **{name: getattr(own if name in given else self, name) for name in Alternative.model_fields},
        )


def with_any_of(source: YamlSource) -> YamlSource:
    """Return the file with a list in place of `tpu:` moved below `any_of:`."""
    listed = source.data.get("tpu")
    if not isinstance(listed, list):
        return source
    made = source.placed(_below_any_of)
    made.data, made.invalid = {**source.data, "tpu": {"any_of": listed}}, {*map(_below_any_of, source.invalid)}
    return made


def written_path(source: YamlSource, path: Path) -> Path:
    """Return the path as the file has it: `tpu[0].zone` in a list, `tpu.any_of[0].zone` in a mapping."""
    short = path[:2] == ("tpu", "any_of") and ("tpu", "any_of") not in source.lines
    return ("tpu", *path[2:]) if short else path


def _below_any_of(path: Path) -> Path:
    return ("tpu", "any_of", *path[1:]) if path[:1] == ("tpu",) and len(path) > 1 else path
