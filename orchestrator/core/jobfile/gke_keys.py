"""The `gke:` section of a job file and of the settings: which cluster a job runs on, and as what."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from pydantic import WithJsonSchema as Shape

from orchestrator.core.jobfile.cluster import ClusterWish
from orchestrator.core.jobfile.json_schema import TEXT_OR_NULL, Section
from orchestrator.core.jobfile.rules import gke as rules
from orchestrator.core.jobfile.settings_section import read_section
from orchestrator.core.jobfile.yaml_source import Path


class GkeSection(Section):
    """The cluster, with `on: gke`. A key that is left out is that of the settings."""

    context: Annotated[str | None, BeforeValidator(rules.context), Shape(TEXT_OR_NULL)] = Field(
        default=None, description="A context of your kubeconfig. Left out, without `cluster`: its current context."
    )
    cluster: Annotated[str | None, BeforeValidator(rules.cluster), Shape(TEXT_OR_NULL)] = Field(
        default=None,
        description="In place of a context: `projects/P/locations/L/clusters/C`, reached with your Google credentials.",
    )
    namespace: Annotated[str | None, BeforeValidator(rules.namespace), Shape(TEXT_OR_NULL)] = Field(
        default=None, description="Where the objects of the job are created. Left out: `default`."
    )
    queue: Annotated[str | None, BeforeValidator(rules.name_of_an_object), Shape(TEXT_OR_NULL)] = Field(
        default=None, description="A LocalQueue of Kueue, which admits the job. Left out: without Kueue."
    )
    priority: Annotated[str | None, BeforeValidator(rules.name_of_an_object), Shape(TEXT_OR_NULL)] = Field(
        default=None, description="A WorkloadPriorityClass of Kueue. Left out: that of the queue."
    )
    image: Annotated[str | None, BeforeValidator(rules.image), Shape(TEXT_OR_NULL)] = Field(
        default=None,
        description="The container image of the pods, which has `python3` (3.8 or newer) and `bash`. Needed, here or in the "
        "settings: none is built.",
    )
    service_account: Annotated[str | None, BeforeValidator(rules.service_account), Shape(TEXT_OR_NULL)] = Field(
        default=None, description="The Kubernetes service account of the pods. Left out: the namespace's default."
    )
    reservation: Annotated[str | None, BeforeValidator(rules.reservation), Shape(TEXT_OR_NULL)] = Field(
        default=None,
        description="The reservation of the nodes, with `tpu.provisioning: reserved`: its name, or "
        "`projects/P/reservations/NAME`.",
    )
    machine_type: Annotated[str | None, Shape(TEXT_OR_NULL)] = Field(
        default=None,
        description="The machine type of the nodes, for types that have two: `ct6e-standard-4t` makes v6e-8 of two hosts. Left "
        "out: the usual one. Not in the settings.",
    )
    privileged: bool = Field(
        default=True,
        description="Run the container privileged, as the nodes of GKE before 1.28 need it to reach TPUs. `false`: where the "
        "cluster does not allow that.",
    )

    @property
    def wish(self) -> ClusterWish:
        """Return what the section says."""
        return ClusterWish(**{key: getattr(self, key) for key in self.model_fields_set})


def of_settings(text: str, file: str) -> ClusterWish:
    """Return what `gke:` in the settings file says; the text has it. Raises JobSpecError with every mistake in it."""
    return read_section(text, file, "gke", _OfSettings, GkeSection.model_fields, _problems_of_settings).gke.wish


class _OfSettings(Section):
    gke: GkeSection


def _problems_of_settings(section: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    yield from rules.section_problems(section)
    if section.get("machine_type") is not None:
        yield ("gke", "machine_type"), "belongs to the accelerator type of a job; write it in the job file"
