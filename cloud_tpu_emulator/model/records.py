"""The records of the emulated cloud: settings, nodes, queued resources, operations, and the table of timed states.

Plain values without behaviour of their own; `cloud_state` and `queue` change them, `wire` shows them, `state` saves them.
"""

import ipaddress
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from cloud_tpu_emulator.faults.plain_data import BadData, check_value
from cloud_tpu_emulator.model.supply import FLEX_START, ON_DEMAND, RESERVED, SPOT, Demand


@dataclass(slots=True)
class Resource:
    """Something with a place, and with an operation that ends with its present state."""

    uid: str  # the API's `id`: a decimal int64, never reused
    project: str
    zone: str
    due: float | None = field(default=None, kw_only=True)  # the present state does not end earlier; None: not by time
    operation: str | None = field(default=None, kw_only=True)  # the operation that ends with the present state
    # google.rpc.Status: with which that operation will fail, or with which a queued resource failed.
    failure: dict[str, Any] | None = field(default=None, kw_only=True)
    # Created with the token of tpujob's own client, and its startup-script not changed since: it runs on this machine.
    trusted: bool = field(default=False, kw_only=True)
    hidden_until: float | None = field(default=None, kw_only=True)  # not visible before; set by faults only

    def visible_at(self, then: float) -> bool:
        """Return whether clients can see it at this time, as long as it exists."""
        return self.hidden_until is None or self.hidden_until <= then


class State(StrEnum):
    """The states of a queued resource, named as in the API."""

    CREATING = "CREATING"
    WAITING = "WAITING_FOR_RESOURCES"
    PROVISIONING = "PROVISIONING"
    ACTIVE = "ACTIVE"
    SUSPENDING = "SUSPENDING"
    SUSPENDED = "SUSPENDED"
    FAILED = "FAILED"
    DELETING = "DELETING"


# In these states no node is created any more; the request holds its name and its quota until it is deleted.
TERMINAL_STATES = (State.SUSPENDED, State.FAILED)


@dataclass(slots=True)
class NodeSpec:
    """Equal nodes, requested under one or several ids."""

    node_ids: list[str]
    node: dict[str, Any]  # as `Node.spec`
    workers: int
    usd_per_hour: float | None


@dataclass(slots=True)
class QueuedResource(Resource):
    """`spec` is the request without its nodes: tier, queueing policy, reservation, run duration."""

    queue_id: str
    spec: dict[str, Any]
    node_specs: list[NodeSpec]
    tier: str
    state: State
    created_at: float
    valid_from: float = 0.0
    valid_until: float | None = None
    run_s: float | None = None  # flex-start: how long its nodes run
    initiator: str = ""  # of the suspension: USER or SERVICE
    ends_at: float | None = None  # when a flex-start run is over
    node_uids: list[str] = field(default_factory=list)  # of the nodes that it created, in the order of `node_names`

    @property
    def name(self) -> str:
        """The full name."""
        return f"projects/{self.project}/locations/{self.zone}/queuedResources/{self.queue_id}"

    @property
    def demands(self) -> list[Demand]:
        """Its nodes, as the supply counts them."""
        return [
            Demand(
                self.project, self.zone, spec.node["acceleratorType"], self.tier, len(spec.node_ids),
                str(self.spec.get("reservationName", "")),
            )
            for spec in self.node_specs
        ]  # fmt: skip

    @property
    def node_names(self) -> list[str]:
        """The full names of its nodes, existing or not."""
        place = f"projects/{self.project}/locations/{self.zone}/nodes"
        return [f"{place}/{node_id}" for spec in self.node_specs for node_id in spec.node_ids]


def load_queued(data: Mapping[str, Any]) -> QueuedResource:
    """Return a queued resource from its dump. KeyError or TypeError for any other data."""
    specs = [NodeSpec(**spec) for spec in data["node_specs"]]
    return QueuedResource(**{**data, "node_specs": specs, "state": State(data["state"])})


class Power(StrEnum):
    """The power of a node's hosts. GONE: no process, no port, no home directory.

    UNKNOWN is never a target: after a crash of the daemon, processes may be running or not, and the driver has to check.
    """

    UNKNOWN = "unknown"
    ON = "on"
    OFF = "off"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Transition:
    """A timed state. It ends in `then`, once `delay` (a setting) has passed and the hosts have reached `power`; if its
    operation fails, in `if_failed`. None is absence."""

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
    # Only `/_emulator/` paths and rehearsals put a node into these.
    "PREEMPTED": Power.OFF,
    "TERMINATED": Power.OFF,
    "REPAIRING": Power.OFF,
    "UNKNOWN": Power.ON,
    "HIDDEN": Power.ON,
}
LOST = ("PREEMPTED", "TERMINATED")  # such a node can only be deleted
# Verb → the state that it needs and the state that it begins.
VERBS = {"stop": ("READY", "STOPPING"), "start": ("STOPPED", "STARTING")}


def parse_networks(data: object, name: str) -> list[str]:
    """Return IPv4 ranges such as 35.235.240.0/20. Raises BadData."""
    texts = check_value(name, data, list)
    try:
        return [str(ipaddress.IPv4Network(text)) for text in texts]
    except ValueError as error:
        raise BadData(f"{name} must be ranges like 35.235.240.0/20: {error}.") from None


@dataclass(slots=True)
class Settings:
    """What may be changed while the daemon runs. docs/emulator.md explains each setting."""

    provision_s: float = 2.0
    stop_s: float = 0.5
    start_s: float = 1.0
    delete_s: float = 0.5
    # Of a queued resource:
    accept_s: float = 0.2  # CREATING
    queue_s: float = 1.0  # WAITING_FOR_RESOURCES, at least
    suspend_s: float = 0.5  # SUSPENDING
    refuse_s: float = 1.5  # until the delete of a PROVISIONING one fails
    notice_s: float = 30.0  # from the notice of a preemption to its end, as on Google Cloud
    maintenance_s: float = 2.0
    no_capacity: list[str] = field(default_factory=list)  # ZONE/TYPE; either part may be *
    unreachable: list[str] = field(default_factory=list)  # zones that lists omit and report as unreachable
    # What the service account of the VMs may do to nodes and queued resources.
    vm_may: list[str] = field(default_factory=lambda: ["get", "delete"])
    vm_route: bool = True  # False: the API does not reply to the VMs
    startup_script: bool = True  # False: it never runs
    client_startup_scripts: bool = False  # True: also of nodes that other clients than tpujob's own have created
    forbid_external_ips: bool = False  # the policy constraints/compute.vmExternalIpAccess
    require_os_login: bool = False  # the policy constraints/compute.requireOsLogin
    # True: this machine is in the slices' network, and reaches workers that have no external address.
    client_inside: bool = False
    # What administrators set up, or do not: see `model.reach`.
    networks: list[str] = field(default_factory=lambda: ["default"])
    # The ranges that a firewall rule lets reach tcp:22.
    ssh_from: list[str] = field(default_factory=lambda: ["0.0.0.0/0"], metadata={"parse": parse_networks})
    private_google_access: bool = True  # False: workers without external addresses do not reach Google's APIs
    cloud_nat: bool = True  # False: workers without external addresses reach no package index
    project_os_login: bool = False  # enable-oslogin=TRUE in the metadata of the project
    disabled_apis: list[str] = field(default_factory=list)  # such as iap.googleapis.com
    missing_permissions: list[str] = field(default_factory=list)  # of the user, such as compute.instances.osLogin
    # Writes of guest attributes beyond so many times Google's rate are dropped; 0: none is.
    attribute_limits: float = 0.0
    lend_torch: bool = False  # True: commands on nodes that are created from then on find this machine's torch
    # True: workers of nodes that are powered on from then on have files that stand for their chips; see `vms.tpu_vm`.
    chips: bool = False
    machines: bool = True  # False: nodes become READY without TPU VMs, for clients that need only the API

    def has_capacity(self, zone: str, accelerator_type: str) -> bool:
        """Return whether `no_capacity` does not name this zone and type."""
        return not any(f"{z}/{t}" in self.no_capacity for z in (zone, "*") for t in (accelerator_type, "*"))

    def runs_scripts(self, trusted: bool) -> bool:
        """Return whether startup-scripts of what a (trusted) client created run on this machine. Their text decides nothing."""
        return self.startup_script and (trusted or self.client_startup_scripts)


@dataclass(slots=True)
class HostRecord:
    """One TPU VM: its ports on loopback, and the guest attributes that it published."""

    ssh_port: int
    metadata_port: int
    attributes: dict[str, str] = field(default_factory=dict)  # "namespace/key" -> value


def is_spot(spec: Mapping[str, Any]) -> bool:
    """Return whether a node's spec asks for spot. gcloud alpha sends only the provisioning model, beside `spot: false`."""
    scheduling = spec.get("schedulingConfig", {})
    return bool(
        scheduling.get("spot") or scheduling.get("preemptible") or scheduling.get("provisioningModel") == "SPOT"
    )


def startup_script_of(spec: Mapping[str, Any]) -> str:
    """Return the startup-script in the metadata of a node's spec; empty: there is none."""
    return str(spec.get("metadata", {}).get("startup-script", ""))


def tier_of(spec: Mapping[str, Any]) -> str:
    """Return the tier (`demand`) of a node's spec."""
    scheduling = spec.get("schedulingConfig", {})
    model = scheduling.get("provisioningModel")
    if model == "FLEX_START":  # only queued resources have it
        return FLEX_START
    if is_spot(spec):
        return SPOT
    reserved = scheduling.get("reserved") or scheduling.get("reservationName") or model == "RESERVATION_BOUND"
    return RESERVED if reserved else ON_DEMAND


@dataclass(frozen=True, slots=True)
class Resume:
    """What a node was doing, and does again after the present operation has failed under a fault."""

    state: str
    due: float | None
    operation: str | None
    failure: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Maintenance:
    """Upcoming or ongoing maintenance. While it is ongoing, the hosts are off."""

    kind: str  # SCHEDULED or UNSCHEDULED
    starts_at: float
    ends_at: float
    workers: tuple[int, ...] = ()  # those that see the notice in their metadata; empty: all
    ongoing: bool = False


@dataclass(slots=True)
class Node(Resource):
    """One node: its spec, its state, and what ends the present transition."""

    node_id: str
    spec: dict[str, Any]  # as requested, normalised: camelCase, enum names
    workers: int
    state: str = "CREATING"
    created_at: float = 0.0
    usd_per_hour: float | None = None  # None: the catalog has no price
    power: Power = Power.OFF
    hosts: list[HostRecord] = field(default_factory=list)
    boot_pending: bool = False  # READY, and the startup script has not run yet
    # Set by faults only.
    busy_until: float | None = None  # a stuck patch refuses other changes until then
    resume: Resume | None = None
    failed_state: str | None = None  # in which a failed create leaves it, without hosts
    # Announced events.
    preempted_at: float | None = None
    maintenance: Maintenance | None = None
    ends_at: float | None = None  # flex-start: the end of its run duration
    # Of a queued resource's node.
    queued_resource: str | None = None  # its full name
    multislice: bool = False  # one of several nodes

    @property
    def name(self) -> str:
        """The full name."""
        return f"projects/{self.project}/locations/{self.zone}/nodes/{self.node_id}"

    @property
    def accelerator_type(self) -> str:
        """The type, such as v5litepod-4."""
        return str(self.spec["acceleratorType"])

    @property
    def spot(self) -> bool:
        """Whether it is a spot node."""
        return is_spot(self.spec)

    @property
    def demand(self) -> Demand:
        """The node as the supply counts it."""
        reservation = self.spec.get("schedulingConfig", {}).get("reservationName", "")
        return Demand(self.project, self.zone, self.accelerator_type, tier_of(self.spec), reservation=reservation)

    @property
    def can_reschedule(self) -> bool:
        """Whether the customer may start maintenance; Google documents v6e from 2x4 on."""
        return self.accelerator_type.startswith("v6e-") and self.demand.amount("chips") >= 8

    @property
    def target_power(self) -> Power:
        """The power that the hosts must reach."""
        state, failure = (self.state, self.failure) if self.resume is None else (self.resume.state, self.resume.failure)
        if self.failed_state is not None:
            return Power.OFF
        if failure is not None:
            return Power.GONE if TRANSITIONS[state].if_failed is None else Power.OFF
        if self.maintenance is not None and self.maintenance.ongoing and state == "READY":
            return Power.OFF
        return SETTLED_POWER.get(state) or TRANSITIONS[state].power


@dataclass(slots=True)
class OperationRecord:
    """One long-running operation. It is listed long after it is done."""

    name: str
    verb: str
    target: str
    created_at: float
    api_version: str
    ended_at: float | None = None
    error: dict[str, Any] | None = None
    response: Node | QueuedResource | None = None  # as it was when the operation ended; None for a delete
    # Of a timed operation (set by faults only), which ends on its own, whatever its target does:
    due: float | None = None
    failure: dict[str, Any] | None = None
    silent: bool = False  # done with neither error nor result

    @property
    def done(self) -> bool:
        """Whether the operation has ended."""
        return self.ended_at is not None


def load_node(data: Mapping[str, Any]) -> Node:
    """Return a node from its dump. KeyError or TypeError for any other data."""
    resume, maintenance = data.get("resume"), data.get("maintenance")
    if maintenance is not None:
        maintenance = Maintenance(**{**maintenance, "workers": tuple(maintenance["workers"])})
    typed = {"power": Power(data["power"]), "hosts": [HostRecord(**host) for host in data["hosts"]]}
    return Node(**{**data, **typed, "resume": Resume(**resume) if resume else None, "maintenance": maintenance})


def dump_operation(operation: OperationRecord) -> dict[str, Any]:
    """Return the operation as plain data, without its result's metadata: 2000 startup scripts would make saves slow."""
    data = asdict(operation)
    response = data["response"] or {}
    for spec in (response.get("spec", {}), *(row["node"] for row in response.get("node_specs", ()))):
        spec.pop("metadata", None)
    return data


def load_operation(data: Mapping[str, Any]) -> OperationRecord:
    """Return an operation from its dump. KeyError or TypeError for any other data."""
    response = data["response"]
    load = load_queued if response and "queue_id" in response else load_node
    return OperationRecord(**{**data, "response": load(response) if response else None})
