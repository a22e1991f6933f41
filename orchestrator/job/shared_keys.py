"""The sections of a job file that the settings have, too: `access:`, how workers are reached, `gke:`, on which cluster, and
`notify:`, who is told; and `queue:`, which only the settings have.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError
from pydantic import WithJsonSchema as Shape

from orchestrator.errors import JobSpecError
from orchestrator.job.cluster import ClusterWish
from orchestrator.job.json_schema import OR_NULL, TEXT_OR_NULL, Section
from orchestrator.job.mistakes import explain, messages
from orchestrator.job.rules import cross_field_rules, env, field_rules, gke
from orchestrator.job.rules import notify as notify_rules
from orchestrator.job.source import yaml_source
from orchestrator.job.source.yaml_source import Mistake, Path
from orchestrator.promise.lease.access import AccessWish
from orchestrator.promise.lease.run_spec import NotifyWish, QueueWish


class AccessSection(Section):
    """How the workers are reached. A key that is left out is that of the settings."""

    via: Literal["auto", "external", "internal", "iap"] = Field(
        default="auto",
        description="`external`: the workers get external addresses. `internal`: they get none, and are reached by their "
        "internal ones, directly or through `ssh_proxy_command`. `iap`: through Identity-Aware Proxy. `auto`: `internal` with "
        "an `ssh_proxy_command`, else `external`, or `iap` where the project allows no external addresses.",
    )
    ssh_proxy_command: Annotated[str | None, BeforeValidator(cross_field_rules.proxy_command), Shape(TEXT_OR_NULL)] = (
        Field(
            default=None,
            description="A program on this machine that carries SSH to a worker, as OpenSSH's ProxyCommand does: "
            "`ssh -W %h:%p bastion`. %h is the internal address, %p the port.",
        )
    )
    os_login: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="Log in by OS Login, with a key that expires, instead of a key in the metadata. `auto`: where the project "
        "requires it.",
    )
    network: Annotated[str | None, BeforeValidator(cross_field_rules.resource), Shape(TEXT_OR_NULL)] = Field(
        default=None, description="The VPC network of the workers, by name or path. Left out: `default`."
    )
    subnetwork: Annotated[str | None, BeforeValidator(cross_field_rules.resource), Shape(TEXT_OR_NULL)] = Field(
        default=None, description="Their subnetwork, by name or path. Left out: the network's own in the region."
    )
    tags: Annotated[tuple[str, ...], BeforeValidator(cross_field_rules.tags), Shape(OR_NULL)] = Field(
        default=(), description="Network tags of the workers, which firewall rules select by."
    )

    secure_boot: bool = Field(
        default=False,
        description="Start the workers with Secure Boot, which the policy constraints/compute.requireShieldedVm requires.",
    )

    @property
    def wish(self) -> AccessWish:
        """Return what the section says; a key that is left out says nothing."""
        return AccessWish(**{key: getattr(self, key) for key in self.model_fields_set})


class GkeSection(Section):
    """The cluster, with `on: gke`. A key that is left out is that of the settings."""

    context: Annotated[str | None, BeforeValidator(gke.context), Shape(TEXT_OR_NULL)] = Field(
        default=None, description="A context of your kubeconfig. Left out, without `cluster`: its current context."
    )
    cluster: Annotated[str | None, BeforeValidator(gke.cluster), Shape(TEXT_OR_NULL)] = Field(
        default=None,
        description="In place of a context: `projects/P/locations/L/clusters/C`, reached with your Google credentials.",
    )
    namespace: Annotated[str | None, BeforeValidator(gke.namespace), Shape(TEXT_OR_NULL)] = Field(
        default=None, description="Where the objects of the job are created. Left out: `default`."
    )
    queue: Annotated[str | None, BeforeValidator(gke.name_of_an_object), Shape(TEXT_OR_NULL)] = Field(
        default=None, description="A LocalQueue of Kueue, which admits the job. Left out: without Kueue."
    )
    priority: Annotated[str | None, BeforeValidator(gke.name_of_an_object), Shape(TEXT_OR_NULL)] = Field(
        default=None, description="A WorkloadPriorityClass of Kueue. Left out: that of the queue."
    )
    image: Annotated[str | None, BeforeValidator(gke.image), Shape(TEXT_OR_NULL)] = Field(
        default=None,
        description="The container image of the pods, which has `python3` (3.8 or newer) and `bash`. Needed, here or in the "
        "settings: none is built.",
    )
    service_account: Annotated[str | None, BeforeValidator(gke.service_account), Shape(TEXT_OR_NULL)] = Field(
        default=None, description="The Kubernetes service account of the pods. Left out: the namespace's default."
    )
    reservation: Annotated[str | None, BeforeValidator(gke.reservation), Shape(TEXT_OR_NULL)] = Field(
        default=None,
        description="The reservation of the nodes, with `tpu.provisioning: reserved`: its name, or "
        "`projects/P/reservations/NAME`. For a block, add `/reservationBlocks/B`, for a part of it also "
        "`/reservationSubBlocks/S`.",
    )
    machine_type: Annotated[str | None, Shape(TEXT_OR_NULL)] = Field(
        default=None,
        description="The machine type of the nodes, for types that have two: `ct6e-standard-4t` makes v6e-8 of two hosts. Left "
        "out: the usual one. Not in the settings.",
    )
    privileged: bool = Field(
        default=False,
        description="Run the container privileged, as the nodes of GKE before 1.28 need it to reach TPUs. Newer ones do "
        "without, and Autopilot and Pod Security `baseline` refuse it.",
    )
    host_network: bool = Field(
        default=False,
        description="Give pods the network of their node, which is faster at scale. It breaks Workload Identity and Cloud "
        "Storage FUSE: pods then have the rights of the node's account.",
    )
    grace: Annotated[float | None, BeforeValidator(field_rules.grace), Shape(TEXT_OR_NULL)] = Field(
        default=None,
        description="What the job has after SIGTERM when the cluster takes its pods away, such as for its last checkpoint: 1s "
        "to 1h. Left out: 10s. A node that is preempted leaves 15 to 25 seconds.",
    )
    pod: Annotated[dict[str, Any] | None, Shape({"anyOf": [{"type": "object"}, {"type": "null"}]})] = Field(
        default=None,
        description="A fragment of a PodSpec, and of the pod's `metadata`, that is merged into the pod as "
        "`kubectl patch --type=strategic` does. The container is `job`. A job's fragment is merged after that of the settings.",
    )

    @property
    def wish(self) -> ClusterWish:
        """Return what the section says."""
        said = {key: getattr(self, key) for key in self.model_fields_set}
        return ClusterWish(**said | {"pod": () if self.pod is None else (self.pod,)})


_EVENTS = {"type": "array", "items": {"type": "string", "enum": list(notify_rules.EVENTS)}}


class NotifySection(Section):
    """Who is told what becomes of a run. In a job, a key that is left out is that of the settings."""

    url: Annotated[str | None, BeforeValidator(notify_rules.url), Shape(TEXT_OR_NULL)] = Field(
        default=None,
        description="Gets a POST with JSON that Slack, Discord, Mattermost and ntfy show. It is a secret: in a job file "
        "`${env:NAME}`, your variable that has it. `notify: ${env:NAME}` is short for this key alone.",
    )
    command: Annotated[str | None, BeforeValidator(notify_rules.command), Shape(TEXT_OR_NULL)] = Field(
        default=None,
        description="In place of an address: a command for the shell of this machine, with TPUJOB_EVENT, TPUJOB_RUN and "
        "TPUJOB_TEXT, and the same JSON on stdin.",
    )
    on: Annotated[
        tuple[str, ...] | None, BeforeValidator(notify_rules.events), Shape({"anyOf": [_EVENTS, {"type": "null"}]})
    ] = Field(default=None, description="The events to tell of. Left out: all of them.")

    @property
    def wish(self) -> NotifyWish:
        """Return what the section says."""
        return NotifyWish(self.url, self.command, self.on)


class QueueSection(Section):
    """The queue of jobs. Only in the settings."""

    store: Annotated[str | None, BeforeValidator(field_rules.bucket), Shape(TEXT_OR_NULL)] = Field(
        default=None,
        description="`gs://BUCKET/DIRECTORY`, where the queue is kept, so that several machines carry it on. Left out: on this "
        "machine.",
    )
    slots: int = Field(default=1, ge=1, le=1000, description="How many slices the queue may have at once.")
    max_cost: Annotated[float | None, BeforeValidator(field_rules.max_cost), Shape(OR_NULL)] = Field(
        default=None, description="How many US dollars the queue may spend in the time `per`, what is claimed included."
    )
    per: Annotated[float, BeforeValidator(partial(field_rules.duration, least="1h", most="366d"))] = Field(
        default=30 * 86400.0, description="The time of `max_cost`."
    )

    @property
    def wish(self) -> QueueWish:
        """Return what the section says."""
        return QueueWish(self.store, self.slots, self.max_cost, self.per)


class _OfSettings(Section):
    queue: QueueSection = QueueSection()
    access: AccessSection = AccessSection()
    gke: GkeSection = GkeSection()
    notify: Annotated[NotifySection, BeforeValidator(notify_rules.short_form)] = NotifySection()


def of_settings(text: str, file: str, name: str) -> AccessWish | ClusterWish | NotifyWish | QueueWish:
    """Return what one of these sections of the settings file says, by the same model, rules and messages as in a job file.

    The text has the section of this name. Raises JobSpecError with every mistake in it.
    """
    source = yaml_source.read(text)
    value = source.data.get(name)
    try:
        section = getattr(_OfSettings.model_validate({name: {} if value is None else value}), name)
        problems = _PROBLEMS[name]
        mistakes = [Mistake(source.line(path), path, why) for path, why in problems({} if value is None else value)]
    except ValidationError as error:
        section = None
        known = type(_OfSettings.model_fields[name].default).model_fields
        mistakes = list(explain(error, source, {(name,): list(known)}))
    mistakes += [mistake for mistake in source.mistakes if mistake.path[:1] == (name,)]
    if mistakes or section is None:
        raise JobSpecError(messages(file, source, mistakes))
    wish: AccessWish | ClusterWish | NotifyWish | QueueWish = section.wish
    return wish


def _gke_problems(section: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    yield from gke.section_problems(section)
    yield from env.secret_problems(section.get("pod"), ("gke", "pod"))
    if section.get("machine_type") is not None:
        yield ("gke", "machine_type"), "belongs to the accelerator type of a job; write it in the job file"


def _notify_problems(section: Any) -> Iterator[tuple[Path, str]]:
    if problem := notify_rules.section_problem(notify_rules.short_form(section), of_a_job=False):
        yield tuple(part for part in ("notify", problem[0]) if part), problem[1]


def _no_problems(section: Any) -> Iterator[tuple[Path, str]]:
    yield from ()


_PROBLEMS = {
    "access": cross_field_rules.access_problems,
    "gke": _gke_problems,
    "notify": _notify_problems,
    "queue": _no_problems,
}
