"""The `tpu:` section of a job file: one wish, or several alternatives and how to choose among them. `core.jobfile.model` has me.

A list in place of the section is read as if it stood below `any_of:`; mistakes are shown at the places as written.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic import WithJsonSchema as Shape

from orchestrator import catalog
from orchestrator.core.jobfile import tpu_rules as rules
from orchestrator.core.jobfile.section import OR_NULL, TEXT, Section
from orchestrator.core.jobfile.yaml_source import Path, YamlSource
from orchestrator.core.planning.capacity_request import Provisioning


class Alternative(Section):
    """One wish that the job can live with. What it leaves out is as `tpu:` says beside `any_of`."""

    accelerator: Annotated[str, BeforeValidator(rules.accelerator_text)] = Field(
        default="v5litepod-8",
        description="Accelerator type, as in the Cloud TPU API; `v5e-8` and `tpu-v5e-8` mean `v5litepod-8`, and so on.",
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
        description="`spot`: cheaper, and may be taken away at any time. `reserved`: out of your reservation. `flex-start`: "
        "queued, up to 7 days, ended by the cloud. `queued`: on-demand, through the queue. Left out: `on-demand`.",
    )
    spot: bool = Field(default=False, description="`true` is short for `provisioning: spot`.")
    queue: bool = Field(
        default=False,
        description="Ask through a queued resource, which waits for capacity, also for spot and reserved.",
    )
    unlisted: bool = Field(default=False, description="Allow types and zones that are newer than tpujob's own table.")

    @property
    def effective_provisioning(self) -> Provisioning:
        if self.provisioning is not None:
            return Provisioning(self.provisioning)
        return Provisioning.SPOT if self.spot else Provisioning.ON_DEMAND

    @property
    def runtime_version(self) -> str:
        """The runtime to ask for: the job's own, else the accelerator type's default."""
        kind = catalog.lookup(self.accelerator)
        return self.runtime or (kind.default_runtime if kind else "")


class TpuSection(Alternative):
    """Which TPU to ask for: one wish, or `any_of` several. A list in place of this section is short for its `any_of`."""

    any_of: Annotated[tuple[Alternative, ...], Field(strict=False)] = Field(
        default=(),
        description="Alternatives, each with the keys from `accelerator` to `unlisted`; what one leaves out is as said beside "
        "`any_of`.",
    )
    order: Literal["as-listed", "cheapest", "fastest"] = Field(
        default="as-listed",
        description="In which order to ask. `cheapest`: by price per hour, what you were granted first, unknown prices last. "
        "`fastest`: by expected waiting: on-demand, reserved and granted, then spot, then whatever is queued.",
    )
    max_price_per_hour: Annotated[
        float | None,
        BeforeValidator(rules.max_price),
        Shape({"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "null"}]}),
    ] = Field(
        default=None, description="Dollars: what costs more by the price table, or has no price, is not asked for."
    )
    wait: Annotated[float, BeforeValidator(rules.wait), Shape({"anyOf": [TEXT, {"const": 0}], "default": 0})] = Field(
        default=0.0,
        description="How long to wait for capacity altogether: up to 7d, such as 6h. `0`: every candidate is asked once.",
    )
    race: bool = Field(
        default=False,
        description="Ask for all queued candidates at once; the first that is there wins, the others are deleted.",
    )

    @property
    def alternatives(self) -> tuple[Alternative, ...]:
        """The wishes, each with what it inherits."""
        return tuple(self._inherited(one) for one in self.any_of) or (self,)

    def _inherited(self, one: Alternative) -> Alternative:
        said = set(one.model_fields_set)
        if said & rules.WAYS:
            said |= rules.WAYS  # two words for one thing
        return Alternative.model_construct(
            one.model_fields_set | self.model_fields_set,
            **{name: getattr(one if name in said else self, name) for name in Alternative.model_fields},
        )


def spelled_out(source: YamlSource) -> YamlSource:
    """The file as if a list of alternatives stood below `any_of:`."""
    listed = source.data.get("tpu")
    if not isinstance(listed, list):
        return source
    return replace(
        source,
        data={**source.data, "tpu": {"any_of": listed}},
        lines={_below_any_of(path): line for path, line in source.lines.items()},
        written={_below_any_of(path): text for path, text in source.written.items()},
        spoilt={_below_any_of(path) for path in source.spoilt},
    )


def any_of_as_written(source: YamlSource, path: Path) -> Path:
    """Where a person finds it: `tpu[0].zone` in a list, `tpu.any_of[0].zone` in a mapping."""
    short = path[:2] == ("tpu", "any_of") and ("tpu", "any_of") not in source.lines
    return ("tpu", *path[2:]) if short else path


def _below_any_of(path: Path) -> Path:
    return ("tpu", "any_of", *path[1:]) if path[:1] == ("tpu",) and len(path) > 1 else path
