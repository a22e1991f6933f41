"""Drafts: for each candidate of a plan a lease and its create request, under a name that was never used. Sends nothing."""

import secrets
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, Protocol

from orchestrator.capacity.plan import Candidate, Plan
from orchestrator.capacity.provisioning import Provisioning
from orchestrator.errors import CloudError, DeadlineExceeded
from orchestrator.promise.lease import access, claim_labels
from orchestrator.promise.lease.access import NO_WISH, AccessWish, ProjectRules, Route, Via
from orchestrator.promise.lease.cloud_api import QueueTerms, SliceRequest
from orchestrator.promise.lease.lease import Lease, Purpose, SliceName
from orchestrator.promise.lease.periods import Timings
from orchestrator.promise.obtain.login_key import create_key, ssh_keys_metadata
from orchestrator.promise.obtain.startup_script import Watched, startup_script, watchdog_config
from orchestrator.text import names
from orchestrator.text.units import format_duration, format_usd

DEFAULT_WAIT_S = 3600.0  # how long a queued request of a job without `wait` is valid
LEAST_LEFT_S = 60.0  # for another attempt


class Draft(NamedTuple):
    """A slice that may be asked for: its lease, not yet in the ledger, and the create request."""

    lease: Lease
    request: SliceRequest


class Drafter(Protocol):
    """Makes the candidates of one job or one `tpujob up`, as often as they are asked for."""

    def make(self, used_s: float = 0.0, spent_usd: float = 0.0) -> tuple[Draft, ...]:
        """Return the candidates in order, under new names.

        `used_s`, `spent_usd`: time and money that went to slices that were lost; so much less is left. Raises
        DeadlineExceeded when too little is.
        """

    def reroute(self, refused: Route, refusal: CloudError) -> Route | None:
        """Return the route of the next drafts, after a policy refused this one; None: it would be the same."""


@dataclass(frozen=True, slots=True)
class Site:
    """Where slices are created: cloud and project, the owner, and the directory for the private files of a lease."""

    cloud: str
    project: str
    owner: str
    lease_directory: Callable[[str], Path]
    timings: Timings
    now: Callable[[], float]
    watched: Watched
    access: AccessWish = NO_WISH
    rules: Callable[[], ProjectRules] = ProjectRules  # what is known of the project's policies
    learn: Callable[[CloudError], None] = lambda _: None  # called with what a policy refuses
    service_account: str | None = None


@dataclass(frozen=True, slots=True)
class PlanDrafter:
    """The drafter of a plan. It creates the SSH key of every draft; `made` has the ids of all its leases."""

    plan: Plan
    site: Site
    handle: str
    purpose: Purpose
    linger_s: float | None = None  # how long a detached job's results wait, for the watchdog; None: the cloud's timings
    idle_s: float | None = None  # a held slice that is unused for so long is deleted by its watchdog; None: never
    run: str | None = None  # the run that pays for the slices
    made: list[str] = field(default_factory=list)

    def make(self, used_s: float = 0.0, spent_usd: float = 0.0) -> tuple[Draft, ...]:
        return tuple(self._draft(each, self._left_s(each, used_s, spent_usd)) for each in self.plan.candidates)

    def reroute(self, refused: Route, refusal: CloudError) -> Route | None:
        self.site.learn(refusal)
        found = access.route(self.site.access, self.site.rules())
        return None if found == refused else found

    def _left_s(self, candidate: Candidate, used_s: float, spent_usd: float) -> float:
        left_s = candidate.life_s - used_s
        budget = self.plan.max_cost
        if spent_usd and budget is not None and candidate.usd_per_hour:
            affordable_s = (budget - spent_usd) / candidate.usd_per_hour * 3600
            left_s = min(left_s, affordable_s - self.site.timings.absent_s)
        if left_s < LEAST_LEFT_S:
            spent = " and ".join([format_duration(max(used_s, 0.0)), *([format_usd(spent_usd)] if spent_usd else [])])
            text = f"too little is left of the job's limits for another attempt: {spent} went to slices that were lost"
            raise DeadlineExceeded(text)
        return left_s

    def _draft(self, candidate: Candidate, life_s: float) -> Draft:
        site, now = self.site, self.site.now()
        timings = site.timings if self.linger_s is None else replace(site.timings, linger_s=self.linger_s)
        lease_id = names.new_run_id(secrets.randbits(names.RUN_BITS))
        name = SliceName(site.project, candidate.zone, names.node_name(site.owner, lease_id), candidate.queued)
        lease = Lease(
            id=lease_id,
            handle=self.handle,
            purpose=self.purpose,
            cloud=site.cloud,
            name=name,
            accelerator_type=candidate.accelerator_type,
            runtime_version=candidate.runtime_version,
            spot=candidate.spot,
            owner=site.owner,
            deadline=now + life_s,
            created_at=now,
            provisioning=str(candidate.provisioning),
            usd_per_hour=candidate.usd_per_hour,
            budget_usd=self.plan.max_cost,
            run=self.run,
            idle_s=self.idle_s,
            route=access.route(site.access, site.rules()),
        )
        self.made.append(lease_id)
        labels = claim_labels.labels(lease, now, timings)
        key = create_key(site.lease_directory(lease_id))
        request = SliceRequest(
            name=name,
            accelerator_type=candidate.accelerator_type,
            runtime_version=candidate.runtime_version,
            spot=candidate.spot,
            reserved=candidate.provisioning is Provisioning.RESERVED,
            labels=labels,
            metadata={
                **_login(lease, key.public_line),
                "enable-guest-attributes": "TRUE",  # workers publish their host keys there
                "startup-script": startup_script(
                    watchdog_config(lease, labels, timings, site.watched, idle_s=self.idle_s)
                ),
            },
            network=site.access.network or "default",
            subnetwork=site.access.subnetwork,
            external_ips=lease.route.via is Via.EXTERNAL,
            tags=site.access.tags or (),
            service_account=site.service_account,
            secure_boot=bool(site.access.secure_boot),
            queue=self._queue(candidate, life_s) if candidate.queued else None,
        )
        return Draft(lease, request)

    def _queue(self, candidate: Candidate, life_s: float) -> QueueTerms:
        flex_start_s = life_s if candidate.provisioning is Provisioning.FLEX_START else None
        return QueueTerms(self.plan.wait_s or DEFAULT_WAIT_S, str(uuid.uuid4()), flex_start_s)


def _login(lease: Lease, public_line: str) -> dict[str, str]:
    if lease.route.os_login:  # with OS Login on, the image ignores ssh-keys
        return {"enable-oslogin": "TRUE"}
    return {"ssh-keys": ssh_keys_metadata(lease.route.user, public_line), "enable-oslogin": "FALSE"}
