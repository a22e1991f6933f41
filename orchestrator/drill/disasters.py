"""The ten disasters, as data, and the promise that each one is measured against.

Its steps cause a disaster in a `Sandbox`; time counts from the moment at which a step ends the claim. `runner` runs the
table.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.drill.sandbox import Sandbox
from orchestrator.promises import PROMISES, TERMS, Bound, PromisedBound, PromiseWorld, bound

SPEED = 100.0
OUTAGE_S = 14.0  # longer than the time to live: the watchdog has decided before the API is back
# What a deletion takes the emulator beyond `delete_s`: it ends the VM's processes and removes its files.
EMULATOR_S = 1.0


@dataclass(frozen=True, slots=True)
class Disaster:
    """One row of the table."""

    number: int
    name: str
    broken: str  # what is killed or broken, for the printed line
    steps: tuple[Callable[[Sandbox], None], ...]
    promise: PromisedBound
    cli_code: int | None = None  # the exit code that the CLI must have; None: it is killed
    speed: float = SPEED  # claims expire so many times faster than on Google Cloud
    faults: tuple[Mapping[str, Any], ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the emulator, beside the times below
    provision_s: float = 0.5
    delete_s: float = 0.5
    outage_s: float = 0.0
    failed_deletes: int = 0
    gc: bool = False  # whether `tpujob gc` runs periodically

    @property
    def world(self) -> PromiseWorld:
        """The conditions from which the bound is computed."""
        return PromiseWorld(
            speed=self.speed,
            deletion_s=self.delete_s + EMULATOR_S,
            outage_s=self.outage_s,
            failed_deletes=self.failed_deletes,
            ready_s=self.provision_s,
            gc_every_s=TERMS["S"].google_s / self.speed,
        )

    @property
    def bound(self) -> Bound:
        """The bound on the emulator of the drill."""
        return bound(self.promise, self.world)

    @property
    def bound_on_google(self) -> Bound:
        """The bound of the same disaster on Google Cloud."""
        return bound(self.promise, self.world.on_google)


def _begin_outage(sandbox: Sandbox) -> None:
    sandbox.fault(kind="drop", when={"until_s": OUTAGE_S})


_RUN, _CUT_POWER = Sandbox.run_until_the_job_runs, Sandbox.kill_everything_local
_KILL_WHILE_CREATING = (Sandbox.start_run, Sandbox.until_creating, Sandbox.kill_cli)
DISASTERS = (
    Disaster(1, "Ctrl-C", "Ctrl-C in the middle of a job",
        (_RUN, Sandbox.press_ctrl_c), PROMISES["command"], cli_code=130),
    Disaster(2, "killed while creating", "kill -9 of the CLI while the slice is CREATING",
        _KILL_WHILE_CREATING, PROMISES["guardian"], provision_s=3.0),
    Disaster(3, "killed while running", "kill -9 of the CLI while the job runs",
        (_RUN, Sandbox.kill_cli), PROMISES["guardian"]),
    Disaster(4, "power cut", "kill -9 of everything local while the job runs",
        (_RUN, Sandbox.until_armed, _CUT_POWER), PROMISES["watchdog"]),
    Disaster(5, "power cut and outage", f"kill -9 of everything local as the API goes down for {OUTAGE_S:.0f} s",
        (_RUN, Sandbox.until_armed, _begin_outage, _CUT_POWER), PROMISES["watchdog after an outage"], outage_s=OUTAGE_S),
    Disaster(6, "lost reply", "the reply to the create call is lost",
        (_RUN, Sandbox.let_the_job_end), PROMISES["command"], cli_code=0,
        faults=({"kind": "lost_reply", "operation": "nodes.create", "when": {"first": 1}},)),
    Disaster(7, "failing deletes", "the delete is accepted and its operation fails, twice",
        (_RUN, Sandbox.let_the_job_end), PROMISES["command"], cli_code=0, failed_deletes=2,
        faults=({"kind": "operation_fails", "operation": "nodes.delete", "seconds": 0.5, "when": {"first": 2}},)),
    Disaster(8, "dropped delete", "kill -9 of the CLI while the slice is CREATING, and the cloud drops the delete",
        _KILL_WHILE_CREATING, PROMISES["guardian of a create"], provision_s=6.0,
        faults=({"kind": "delete_dropped", "when": {"first": 1}},)),
    Disaster(9, "unattended", "a detached job ends, and no client is there",
        (Sandbox.submit, _CUT_POWER, Sandbox.let_the_job_end), PROMISES["watchdog of a detached run"], speed=300.0),
    Disaster(10, "no permission", "kill -9 of everything local, and the VM may not delete",
        (_RUN, _CUT_POWER), PROMISES["gc"], speed=300.0, settings={"vm_may": ["get"]}, gc=True),
)  # fmt: skip
