"""The plan of a job on a cluster: one candidate, which has the price of its nodes where the table knows one. Pure."""

from collections.abc import Iterable

from orchestrator import catalog
from orchestrator.core.planning.capacity_request import Provisioning
from orchestrator.core.planning.plan import Candidate, Plan
from orchestrator.places.gke.objects.manifest import ClusterShape


def plan_of(of: ClusterShape) -> Plan:
    """Return the plan of a of. The zone of its candidate is the namespace; `life_s` is the deadline of the Job."""
    return Plan(candidates=(_candidate(of),), dropped=(), max_duration_s=of.deadlines.run_s, wait_s=of.deadlines.wait_s)


def _candidate(of: ClusterShape) -> Candidate:
    usd, why = price(of)
    return Candidate(
        accelerator_type=of.slice.kind.name,
        zone=of.target.namespace,
        runtime_version="",
        provisioning=of.capacity.provisioning,
        usd_per_hour=usd,
        why=why,
        queued=of.target.queue is not None,
        list_usd_per_hour=usd,
        life_s=of.deadlines.job_s,
        workers=of.pods,
        cores=of.slices * of.slice.kind.cores,
    )


def price(of: ClusterShape, location: str | None = None) -> tuple[float | None, str]:
    """Return dollars an hour of all slices, and where that is so; None where the table has no price.

    `location`: of the cluster, where its name does not say it. Where that is not known either, or is a region, it is the price
    of the dearest zone.
    """
    name, spot = of.slice.kind.name, of.capacity.provisioning is Provisioning.SPOT
    if of.capacity.ends_nodes:
        return None, "the price table has none for flex-start"
    location = of.target.location or location
    zones = catalog.zones_with(name)
    near = [zone for zone in zones if location is None or location in (zone, zone.rpartition("-")[0])]
    found = dict(_priced(name, near, spot=spot))
    if not found:
        where = "" if location is None else f" in {location}"
        return None, f"the price table has none for {name}{' (spot)' if spot else ''}{where}"
    dearest = max(found, key=lambda zone: found[zone])
    return found[dearest] * of.slices, f"in {dearest}" if len(found) == 1 else f"in {dearest}, the dearest zone"


def _priced(name: str, zones: Iterable[str], *, spot: bool) -> Iterable[tuple[str, float]]:
    for zone in zones:
        if (usd := catalog.usd_per_hour(name, zone, spot=spot)) is not None:
            yield zone, usd
