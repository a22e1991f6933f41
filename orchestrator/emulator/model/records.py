"""The things of the emulated cloud: settings, nodes, operations, and the table of states that pass by themselves.

Plain values without behaviour of their own; `cloud_state` changes them, `wire` shows them, `store` keeps them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from orchestrator.emulator.model.queue_records import QueuedResource, load_queued
from orchestrator.emulator.supply.demand import FLEX_START, ON_DEMAND, RESERVED, SPOT, Demand


class Power(StrEnum):
    """What the hosts of a node are, or should be. GONE: no process, no port, no home directory.

    UNKNOWN is never wanted: after a crash of the daemon, processes may live or not, and somebody has to look.
    """

    UNKNOWN = "unknown"
    ON = "on"
    OFF = "off"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Transition:
    """A state that passes by itself: into `then`, not before `delay` and not before `power` is reached; or, when its
    operation fails, into `if_failed`. None is absence."""

    then: str | None
    delay: str
    power: Power
    if_failed: str | None = None


TRANSITIONS = {
    "CREATING": Transition("READY", "provision_s", Power.ON),
    "STARTING": Transition("READY", "start_s", Power.ON, if_failed="STOPPED"),
    "STOPPING": Transition("STOPPED", "stop_s", Power.OFF),
    "DELETING": Transition(None, "delete_s", Power.GONE),
    "RESTARTING": Transition("STARTING", "stop_s", Power.OFF, if_failed="STOPPED"),
}
SETTLED_POWER = {
    "READY": Power.ON,
    "STOPPED": Power.OFF,
    # Into these nothing but a person (the admin path) puts a node.
    "PREEMPTED": Power.OFF,
    "TERMINATED": Power.OFF,
    "REPAIRING": Power.OFF,
    "UNKNOWN": Power.ON,
    "HIDDEN": Power.ON,
}
LOST = ("PREEMPTED", "TERMINATED")  # Google has taken it back: it can only be deleted
VERBS = {"stop": ("READY", "STOPPING"), "start": ("STOPPED", "STARTING")}


@dataclass(slots=True)
class Settings:
    """What tests and people may change while it runs. `no_capacity` holds `ZONE/TYPE`, either part may be `*`."""

    provision_s: float = 2.0
    stop_s: float = 0.5
    start_s: float = 1.0
    delete_s: float = 0.5
    accept_s: float = 0.2  # a queued resource is CREATING for so long,
    queue_s: float = 1.0  # waits at least so long, also where there is room,
    suspend_s: float = 0.5  # is SUSPENDING for so long,
    refuse_s: float = 1.5  # and the delete of one that is PROVISIONING fails after so long
    notice_s: float = 1.0  # a preemption is announced so long before, as Google does 30 s before
    maintenance_s: float = 2.0  # how long maintenance takes
    no_capacity: list[str] = field(default_factory=list)
    unreachable: list[str] = field(default_factory=list)  # zones that a list leaves out and names as unreachable
    vm_may: list[str] = field(
        default_factory=lambda: ["get", "delete"]
    )  # of nodes and queued resources, with the account of the VMs
    vm_route: bool = True  # False: the API does not answer the VMs
    startup_script: bool = True  # False: it never runs
    attribute_limits: float = (
        0.0  # writes of guest attributes are lost beyond so many times what Google allows; 0: never
    )
    lend_torch: bool = False  # True: commands on nodes that are created from then on find this machine's torch
    machines: bool = True  # False: nodes are READY without TPU VMs behind them, for those who need only the API

    def has_capacity(self, zone: str, accelerator_type: str) -> bool:
        return not any(f"{z}/{t}" in self.no_capacity for z in (zone, "*") for t in (accelerator_type, "*"))


@dataclass(slots=True)
class HostRecord:
    """One TPU VM as the machine knows it: where it answers, and the guest attributes it published."""

    ssh_port: int
    metadata_port: int
    attributes: dict[str, str] = field(default_factory=dict)  # "namespace/key" -> value


def is_spot(spec: Mapping[str, Any]) -> bool:
    """gcloud alpha says it by the provisioning model alone, with `spot: false` beside it."""
    scheduling = spec.get("schedulingConfig", {})
    return bool(
        scheduling.get("spot") or scheduling.get("preemptible") or scheduling.get("provisioningModel") == "SPOT"
    )


def tier_of(spec: Mapping[str, Any]) -> str:
    scheduling = spec.get("schedulingConfig", {})
    model = scheduling.get("provisioningModel")
    if model == "FLEX_START":  # only a queued resource can say it
        return FLEX_START
    if is_spot(spec):
        return SPOT
    reserved = scheduling.get("reserved") or scheduling.get("reservationName") or model == "RESERVATION_BOUND"
    return RESERVED if reserved else ON_DEMAND


@dataclass(frozen=True, slots=True)
class Resume:
    """What a node was doing, and does again when the present operation has failed as a fault wants it."""

    state: str
    due: float | None
    operation: str | None
    failure: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Maintenance:
    """Upcoming, or under way: then the hosts are off."""

    kind: str  # SCHEDULED or UNSCHEDULED
    starts_at: float
    ends_at: float
    workers: tuple[int, ...] = ()  # whose metadata say so; none: all
    ongoing: bool = False


@dataclass(slots=True)
class Node:
    """One node: what was asked for, its state, and what the present transition waits for."""

    uid: str  # the API's `id`: a decimal int64, never used twice
    project: str
    zone: str
    node_id: str
    spec: dict[str, Any]  # what the client asked for, normalised: camelCase, enum names
    workers: int
    state: str
    created_at: float
    due: float | None = None  # when the present transition may end
    operation: str | None = None  # the operation that ends with it
    failure: dict[str, Any] | None = None  # how that operation will fail, if it will
    power: Power = Power.OFF
    hosts: list[HostRecord] = field(default_factory=list)
    boot_pending: bool = False  # READY was reached; the startup script has not been run yet
    # Only faults set these.
    hidden_until: float | None = None  # nobody can see it before
    busy_until: float | None = None  # a patch that takes long refuses other changes
    resume: Resume | None = None
    left_as: str | None = None  # the state in which a failed create leaves it, without hosts
    # What was announced to it.
    preempted_at: float | None = None
    maintenance: Maintenance | None = None
    ends_at: float | None = None  # flex-start: when its time is over
    # Of a node that a queued resource has got.
    queued_resource: str | None = None  # its full name
    multislice: bool = False  # one of several

    @property
    def name(self) -> str:
        return f"projects/{self.project}/locations/{self.zone}/nodes/{self.node_id}"

    @property
    def accelerator_type(self) -> str:
        return str(self.spec["acceleratorType"])

    @property
    def spot(self) -> bool:
        return is_spot(self.spec)

    @property
    def want(self) -> Demand:
        """As the supply counts it."""
        reservation = self.spec.get("schedulingConfig", {}).get("reservationName", "")
        return Demand(self.project, self.zone, self.accelerator_type, tier_of(self.spec), reservation=reservation)

    @property
    def can_reschedule(self) -> bool:
        """May the customer start maintenance? Google says: v6e from 2x4 on."""
        want = self.want
        return want.accelerator_type.startswith("v6e-") and want.amount("chips") >= 8

    @property
    def wanted_power(self) -> Power:
        state, failure = (self.state, self.failure) if self.resume is None else (self.resume.state, self.resume.failure)
        if self.left_as is not None:
            return Power.OFF
        if failure is not None:
            return Power.GONE if TRANSITIONS[state].if_failed is None else Power.OFF
        if self.maintenance is not None and self.maintenance.ongoing and state == "READY":
            return Power.OFF
        return SETTLED_POWER.get(state) or TRANSITIONS[state].power


@dataclass(slots=True)
class OperationRecord:
    """One long-running operation, answered until long after it is done."""

    name: str
    verb: str
    target: str
    created_at: float
    api_version: str
    ended_at: float | None = None
    error: dict[str, Any] | None = None
    response: Node | QueuedResource | None = None  # as it was when the operation ended; None for a delete
    # Only faults set these: an operation that ends by itself, whatever its target does.
    due: float | None = None
    failure: dict[str, Any] | None = None
    silent: bool = False  # done with neither error nor result

    @property
    def done(self) -> bool:
        return self.ended_at is not None


def load_node(data: Mapping[str, Any]) -> Node:
    resume, maintenance = data.get("resume"), data.get("maintenance")
    if maintenance is not None:
        maintenance = Maintenance(**{**maintenance, "workers": tuple(maintenance["workers"])})
    typed = {"power": Power(data["power"]), "hosts": [HostRecord(**host) for host in data["hosts"]]}
    return Node(**{**data, **typed, "resume": Resume(**resume) if resume else None, "maintenance": maintenance})


def dump_operation(operation: OperationRecord) -> dict[str, Any]:
    """Without the metadata of its result: a startup-script in each of 2000 operations would make every save slow."""
    data = asdict(operation)
    response = data["response"] or {}
    for spec in (response.get("spec", {}), *(row["node"] for row in response.get("node_specs", ()))):
        spec.pop("metadata", None)
    return data


def load_operation(data: Mapping[str, Any]) -> OperationRecord:
    said = data["response"]
    load = load_queued if said and "queue_id" in said else load_node
    return OperationRecord(**{**data, "response": load(said) if said else None})
