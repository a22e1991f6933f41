"""What every plan shares: its inputs beside the shipped table, its report in sentences, and where its slices are created."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from orchestrator.client.project_rules import RulesFile
from orchestrator.client.session import Session
from orchestrator.client.slices import availability
from orchestrator.core.lease import access
from orchestrator.core.lease.access import AccessWish
from orchestrator.core.lease.lease import Purpose
from orchestrator.core.planning import egress, grants
from orchestrator.core.planning.capacity_request import PlanInputs
from orchestrator.core.planning.plan import Plan
from orchestrator.core.text.durations import format_duration
from orchestrator.core.text.sizes import format_size
from orchestrator.engine.provision.drafts import Place, PlanDrafter
from orchestrator.report.plan import dropped_lines, plan_lines

if TYPE_CHECKING:
    from orchestrator.core.jobfile.keys import JobSpec
    from orchestrator.core.planning.egress import Bucket

DEFAULT_EMULATED_CORES = 2
DOCTOR_OF = "tpujob doctor JOB.yaml"  # or --via: about another way than that of the settings


def known_to(session: Session, spec: JobSpec | None = None) -> PlanInputs:
    """Return the plan inputs. `spec`: the job, whose bucket is looked up; an unknown region is reported. Raises BadRequest."""
    return PlanInputs(
        grants=grants.remaining(session.target.grants, _used(session)),
        availability=availability.known(session),
        buckets=_buckets(session, spec) if spec is not None else (),
    )


def _used(session: Session) -> list[tuple[str, str, bool]]:
    """Return the slices in this machine's ledger. Those of other machines count when the cloud refuses a request."""
    return [(lease.accelerator_type, lease.name.zone, lease.spot) for lease in session.open_leases()]


def _buckets(session: Session, spec: JobSpec) -> tuple[Bucket, ...]:
    """Return the job's buckets and their regions; none where no region is excluded. Raises BadRequest if one is missing."""
    emulated = session.target.kind == "emulated"
    emulator = os.environ.get("STORAGE_EMULATOR_HOST") if emulated else None
    return () if emulated and not emulator else buckets_of(session, spec, emulator)


def buckets_of(session: Session, spec: JobSpec, emulator: str | None) -> tuple[Bucket, ...]:
    """Return the job's buckets as Cloud Storage, or an emulator of it, describes them, else as `_buckets` does."""
    if spec.allow_egress:
        return ()
    names = [url.removeprefix("gs://").partition("/")[0] for url in (spec.bucket, *spec.data.values()) if url]
    found = [_described(session, name, emulator) for name in dict.fromkeys(names)]
    return tuple(each for each in found if each is not None)


def _described(session: Session, name: str, emulator: str | None) -> Bucket | None:
    from orchestrator.errors import BadRequest, CloudError
    from orchestrator.places.google import storage

    try:
        found = storage.bucket(name, project=session.target.project, emulator=emulator)
        why = f"{emulator} does not tell" if emulator else "its description names no region"
    except CloudError as error:
        if isinstance(error, BadRequest):
            raise  # no such bucket: the upload of the artifacts would fail
        found, why = None, error.message
    if found is None:
        unknown = f"the region of gs://{name} is unknown ({why}); copying from another region costs {egress.ANYWHERE}"
        session.reporter.notice("bucket", unknown)
    return found


def rules_of(session: Session) -> RulesFile:
    """Return what is known of the policies of this session's project."""
    return RulesFile(session.directory / "access.json", session.target.kind, session.target.project, session.now)


def drafter(session: Session, plan: Plan, wish: AccessWish, *, purpose: Purpose, **about: Any) -> PlanDrafter:
    """Return what drafts the slices of a plan. Raises ConfigError where this machine could not use them."""
    where = place(session, wish)
    way = access.route(where.access, where.rules())
    files = 1 if way.via is not access.Via.IAP and way.ssh_proxy_command is None else 3
    workers = max(candidate.workers for candidate in plan.candidates)
    check_machine(session, *((workers, files) if purpose is Purpose.RUN else ()))
    return PlanDrafter(plan, where, purpose=purpose, **about)


def check_machine(session: Session, workers: int = 0, files_each: int = 1) -> None:
    """Raise ConfigError for what would end a run on so many workers once its slice is billed."""
    from orchestrator.remote.fleet import limits

    session.locks.check()
    limits.check(workers, files_each)


def place(session: Session, wish: AccessWish) -> Place:
    """Return where the slices of this session are created. `wish`: of the job or the command, before the settings' own."""
    rules = rules_of(session)
    return Place(
        cloud=session.target.kind,
        project=session.target.project,
        owner=session.owner,
        lease_directory=session.lease_directory,
        timings=session.target.timings,
        now=session.certain_now,
        access=wish.over(session.target.access),
        rules=rules.known,
        learn=rules.learn,
        service_account=session.target.service_account,
    )


def show_plan(
    session: Session,
    plan: Plan,
    emulated_cores: int | None = None,
    spec: JobSpec | None = None,
    wish: AccessWish = access.NO_WISH,
    *,
    after_held: bool = False,
) -> None:
    """Report the plan. `spec`: of the job that is to run there, or `wish`, without a job.

    `after_held`: the plan is for the case that a held slice cannot be used.
    """
    for line in lines_of(session, plan, emulated_cores, spec, wish, after_held=after_held):
        session.reporter.notice("plan", line)


def lines_of(
    session: Session,
    plan: Plan,
    emulated_cores: int | None = None,
    spec: JobSpec | None = None,
    wish: AccessWish = access.NO_WISH,
    *,
    after_held: bool = False,
) -> list[str]:
    """Return the plan in sentences."""
    wish = (wish if spec is None else spec.access.wish).over(session.target.access)
    emulated = session.target.kind == "emulated"
    has_code = spec is not None and (spec.train is None or spec.train.entry is not None)
    has_python = spec is not None and spec.python is not None
    lines = plan_lines(
        plan,
        session.now(),
        emulated=emulated,
        emulated_cores=emulated_cores,
        overlap_s=session.target.timings.absent_s,
        python="{}.{}".format(*sys.version_info) if emulated and has_code and not has_python else None,
        torch_tpu=spec is not None and spec.train is not None and spec.train.backend == "tpu" and not has_python,
    )
    if (taken := access.route(wish, rules_of(session).known())) != access.DIRECT:
        whose = "workers of a new slice" if after_held else "the workers"
        lines.append(f"{whose} are reached {access.describe(taken)}")
    if taken.via is not access.Via.EXTERNAL:
        needs = "their watchdog needs Private Google Access, and packages need Cloud NAT or an index in the network"
        doctor = (
            "tpujob doctor" if taken == access.route(session.target.access, rules_of(session).known()) else DOCTOR_OF
        )
        lines.append(f"they have no external address: {needs} (`{doctor}` looks)")
    if spec is not None and spec.keep_on_failure is not None:
        for_s = format_duration(spec.keep_on_failure)
        lines.append(f"keeps the slice of a job that fails for {for_s} (keep_on_failure), which end and price include")
    if spec is not None and spec.limits.max_results is not None:
        lines.append(f"collects {format_size(spec.limits.max_results)} of results at most (limits.max_results)")
    return [*lines, *dropped_lines(plan.dropped)]
