"""The plan of a job on a cluster: one candidate, with the price of its nodes where the table knows one, in words. Pure."""

from orchestrator import catalog
from orchestrator.capacity.plan import Candidate, Plan
from orchestrator.capacity.provisioning import Provisioning
from orchestrator.places.gke.objects.manifest import INLINE_BYTES, MAX_BYTES, ClusterShape, PodProgram
from orchestrator.text.units import format_duration, format_size, format_usd


def plan_of(of: ClusterShape) -> Plan:
    """Return the plan of a shape. The zone of its candidate is the namespace; `life_s` is the deadline of the Job."""
    usd, why = price(of)
    candidate = Candidate(
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
    return Plan((candidate,), dropped=(), max_duration_s=of.deadlines.run_s, wait_s=of.deadlines.wait_s)


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
    found = {zone: usd for zone in near if (usd := catalog.usd_per_hour(name, zone, spot=spot)) is not None}
    if not found:
        where = "" if location is None else f" in {location}"
        return None, f"the price table has none for {name}{' (spot)' if spot else ''}{where}"
    dearest = max(found, key=lambda zone: found[zone])
    return found[dearest] * of.slices, f"in {dearest}" if len(found) == 1 else f"in {dearest}, the dearest zone"


NODES_STAY = "10 minutes"  # of the autoscaler of GKE, at its usual settings


def cluster_plan_lines(of: ClusterShape, results: str | None = None) -> list[str]:
    """Return what a run of this job is about to ask for, what ends it if everything here dies, and what comes home.

    `results`: where in its bucket; None for a job without one.
    """
    lines = [_what(of), _where(of), _price(of), _deadlines(of), _nodes(of), _results(of, results), *_notes(of)]
    if (again := of.deadlines.starts - 1) > 0:
        times = f"{again} time{'s'[: again != 1]}"
        lines.append(
            f"if its pods are taken away, the cluster starts the job again, {times} at most, with what was saved"
        )
    return lines


def program_line(program: PodProgram) -> str:
    """Return how much of a ConfigMap the program takes."""
    where = program.request.get("code_object")
    held = f"the ConfigMap holds {format_size(program.size_bytes)} of at most {format_size(MAX_BYTES)}"
    return held if where is None else f"{held}; the code goes to {where}"


def _what(of: ClusterShape) -> str:
    kind, slices = of.slice, f"{of.slices} × " if of.slices > 1 else ""
    pods = f"{of.pods} pod{'s'[: of.pods != 1]}" + (f", {kind.hosts} a slice" if of.slices > 1 else "")
    how = f"{of.capacity.provisioning.label}{', all at once' if of.capacity.together else ''}"
    count = of.slices * kind.kind.chips
    chips = f"{count} chip{'s'[: count != 1]}"
    return f"{slices}{kind.kind.name} · {how} · {pods} on {kind.machine_type} · topology {kind.topology} · {chips}"


def _where(of: ClusterShape) -> str:
    queue = f"queue {of.target.queue} of Kueue" if of.target.queue else "without Kueue: its pods wait for nodes"
    return f"{of.target.described}, namespace {of.target.namespace}, {queue}; image {of.target.image}"


def _price(of: ClusterShape) -> str:
    usd, why = price(of)
    if usd is None:
        return f"price unknown: {why}"
    most_s = of.deadlines.starts * of.deadlines.job_s
    most, time = usd * most_s / 3600, format_duration(most_s)
    return f"its nodes cost about ${usd:,.2f}/h {why}, at most {format_usd(most)} in {time} ({catalog.PRICES_AS_OF})"


def _deadlines(of: ClusterShape) -> str:
    dead = of.deadlines
    waits, runs, ends = (format_duration(each) for each in (dead.wait_s, dead.run_s, dead.job_s))
    if of.target.queue is None:
        return f"the job runs for {runs} at most, and the cluster itself ends the job {ends} after its creation"
    return (
        f"waits for admission for {waits}; the job runs for {runs} at most, and the cluster itself ends it {ends} after its "
        "admission; if this machine is gone by then, a job that was not admitted waits on, and runs later"
    )


def _nodes(of: ClusterShape) -> str:
    if of.capacity.together:
        return "the cloud deletes its nodes when their time is over (maxRunDurationSeconds)"
    if of.capacity.ends_nodes:
        return "the cloud deletes its nodes after 7 days at the latest, or after the time that their pool says"
    return (
        f"nodes are billed, not pods: the cluster removes them about {NODES_STAY} after their last pod, unless their pool has "
        "a minimum size; tpujob does not"
    )


def _results(of: ClusterShape, results: str | None) -> str:
    if results is not None:
        return f"results go to {results}/ and stay there; every command reads them from there"
    kept = format_duration(of.deadlines.kept_s)
    return (
        f"without `bucket:`, results of up to {format_size(INLINE_BYTES)} a pod, packed, come home in its log, the smallest "
        f"files first; nothing larger does. A log is there for {kept} after the end of the job, or as long as its node"
    )


def _notes(of: ClusterShape) -> list[str]:
    if of.slices > 1 and of.slice.hosts == 1:
        return [f"Google documents multislice for slices of several hosts, and {of.slice.kind.name} has one"]
    return []
