"""The ten disasters, as data and a few lines each: what happens to whom, and which promise it is held to.

A script brings the disaster about on a `Stage`; from the moment it lets the claim end, time counts. What comes after that
is up to tpujob. `rehearse` runs the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.drill.stage import Stage
from orchestrator.promises import PROMISES, TERMS, Bound, PromisedBound, PromiseWorld, bound

SPEED = 100.0
OUTAGE_S = 14.0  # longer than the time to live: the switch is decided before the API is back
EMULATORS_OWN_S = 1.0  # what a deletion takes it beyond `delete_s`: it ends the processes of the VM, and erases it


@dataclass(frozen=True, slots=True)
class Disaster:
    number: int
    name: str
    broken: str  # what was killed or broken, for people
    script: Callable[[Stage], None]
    promise: PromisedBound
    cli_code: int | None = None  # how the CLI must end; None where it is killed
    speed: float = SPEED  # how much faster than on Google Cloud claims are judged
    faults: tuple[Mapping[str, Any], ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the emulator, beside the times below
    provision_s: float = 0.5
    delete_s: float = 0.5
    outage_s: float = 0.0
    failed_deletes: int = 0
    gc: bool = False  # does `tpujob gc` run, now and then?

    @property
    def world(self) -> PromiseWorld:
        return PromiseWorld(
            speed=self.speed,
            deletion_s=self.delete_s + EMULATORS_OWN_S,
            outage_s=self.outage_s,
            failed_deletes=self.failed_deletes,
            ready_s=self.provision_s,
            gc_every_s=TERMS["S"].google_s / self.speed,
        )

    @property
    def bound(self) -> Bound:
        return bound(self.promise, self.world)

    @property
    def bound_on_google(self) -> Bound:
        """Of the same disaster there."""
        return bound(self.promise, self.world.on_google)


def ctrl_c(stage: Stage) -> None:
    stage.run_until_the_job_runs()
    stage.press_ctrl_c()


def killed_while_creating(stage: Stage) -> None:
    stage.start_run()
    stage.until_creating()
    stage.kill_cli()


def killed_while_running(stage: Stage) -> None:
    stage.run_until_the_job_runs()
    stage.kill_cli()


def power_cut(stage: Stage) -> None:
    stage.run_until_the_job_runs()
    stage.until_armed()
    stage.kill_everything_local()


def power_cut_and_outage(stage: Stage) -> None:
    stage.run_until_the_job_runs()
    stage.until_armed()
    stage.fault(kind="drop", when={"until_s": OUTAGE_S})
    stage.kill_everything_local()


def job_ends(stage: Stage) -> None:
    stage.run_until_the_job_runs()
    stage.let_the_job_end()


def detached_and_alone(stage: Stage) -> None:
    stage.submit()
    stage.kill_everything_local()
    stage.let_the_job_end()


def power_cut_and_no_permission(stage: Stage) -> None:
    stage.run_until_the_job_runs()
    stage.kill_everything_local()


DISASTERS = (
    Disaster(
        1, "Ctrl-C", "Ctrl-C in the middle of a job",
        ctrl_c, PROMISES["command"], cli_code=130,
    ),
    Disaster(
        2, "killed while creating", "kill -9 of the CLI while the slice is CREATING",
        killed_while_creating, PROMISES["guardian"], provision_s=3.0,
    ),
    Disaster(
        3, "killed while running", "kill -9 of the CLI while the job runs",
        killed_while_running, PROMISES["guardian"],
    ),
    Disaster(
        4, "power cut", "kill -9 of everything local while the job runs",
        power_cut, PROMISES["switch"],
    ),
    Disaster(
        5, "power cut and outage", f"kill -9 of everything local as the API goes down for {OUTAGE_S:.0f} s",
        power_cut_and_outage, PROMISES["switch after an outage"], outage_s=OUTAGE_S,
    ),
    Disaster(
        6, "lost reply", "the reply to the create call is lost",
        job_ends, PROMISES["command"], cli_code=0,
        faults=({"kind": "lost_reply", "operation": "nodes.create", "when": {"first": 1}},),
    ),
    Disaster(
        7, "failing deletes", "the delete is accepted and its operation fails, twice",
        job_ends, PROMISES["command"], cli_code=0, failed_deletes=2,
        faults=({"kind": "operation_fails", "operation": "nodes.delete", "seconds": 0.5, "when": {"first": 2}},),
    ),
    Disaster(
        8, "dropped delete", "kill -9 of the CLI while the slice is CREATING, and the cloud drops the delete",
        killed_while_creating, PROMISES["guardian of a create"], provision_s=6.0,
        faults=({"kind": "delete_dropped", "when": {"first": 1}},),
    ),
    Disaster(
        9, "nobody comes", "a detached job ends, and nobody is there",
        detached_and_alone, PROMISES["switch of a detached run"], speed=300.0,
    ),
    Disaster(
        10, "nobody may", "kill -9 of everything local, and the VM may not delete",
        power_cut_and_no_permission, PROMISES["gc"], speed=300.0, settings={"vm_may": ["get"]}, gc=True,
    ),
)  # fmt: skip
