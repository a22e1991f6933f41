"""The `gke:` section of a job file and of the settings: which cluster a job runs on, and as what."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, Field, ValidationError
from pydantic import WithJsonSchema as Shape

from orchestrator.core.jobfile import yaml_source
from orchestrator.core.jobfile.cluster import ClusterWish
from orchestrator.core.jobfile.json_schema import TEXT_OR_NULL, Section
from orchestrator.core.jobfile.mistakes import explain, messages
from orchestrator.core.jobfile.rules import gke as rules
from orchestrator.core.jobfile.yaml_source import Mistake, Path
from orchestrator.errors import JobSpecError


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


# Reads a section of the settings file that a job file has, too: the same model, rules and messages.

S = TypeVar("S", bound=Section)
Problems = Callable[[Mapping[str, Any]], Iterable[tuple[Path, str]]]


def read_section(text: str, file: str, name: str, model: type[S], known: Iterable[str], problems: Problems) -> S:
    """Return `model` with the section of this name, its only field, which the text has.

    `known`: the keys of the section. `problems`: what is wrong with its values together. Raises JobSpecError.
    """
    source = yaml_source.read(text)
    value = source.data.get(name)
    found: S | None = None
    try:
        found = model.model_validate({name: {} if value is None else value})
        mistakes = [Mistake(source.line(path), path, why) for path, why in problems(value or {})]
    except ValidationError as error:
        mistakes = list(explain(error, source, {(name,): list(known)}))
    mistakes += [mistake for mistake in source.mistakes if mistake.path[:1] == (name,)]
    if mistakes or found is None:
        raise JobSpecError(messages(file, source, mistakes))
    return found
