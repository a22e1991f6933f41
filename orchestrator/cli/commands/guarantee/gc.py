"""`tpujob gc`: delete slices without a claim, from any machine; or, with --local, finish what this machine owes."""

from collections.abc import Iterator
from typing import Annotated, Literal

from orchestrator.cli import completion
from orchestrator.cli.console import console, emit, emit_json, emit_wrapped, open_session
from orchestrator.cli.options import Cloud, Json, Option, Project
from orchestrator.client.guarantee import gc as client
from orchestrator.core.text.units import day_clock
from orchestrator.errors import UserError
from orchestrator.places import traits_of, traits_on


def gc(
    zone: Annotated[
        list[str] | None,
        Option(
            "--zone", help="Only this zone or region; may be given several times.", autocompletion=completion.places
        ),
    ] = None,
    all_zones: Annotated[bool, Option("--all-zones", help="Every zone of the project, which is the default.")] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="List what would be deleted, and delete nothing.")] = False,
    local: Annotated[
        bool, Option("--local", help="Only finish what this machine's ledger owes: what the timer runs.")
    ] = False,
    on: Annotated[
        Literal["tpu", "gke"], Option("--on", help="`gke`: what jobs left on a cluster, in its namespaces.")
    ] = "tpu",
    namespace: Annotated[
        list[str] | None,
        Option("--namespace", help="With `--on gke`: instead of that of the settings; may be given several times."),
    ] = None,
    context: Annotated[
        str | None, Option("--context", help="With `--on gke`: of your kubeconfig, instead of that of the settings.")
    ] = None,
    cluster: Annotated[
        str | None,
        Option("--cluster", help="With `--on gke`: projects/P/locations/L/clusters/C, instead of a context."),
    ] = None,
    as_json: Json = False,
    cloud: Cloud = None,
    project: Project = None,
) -> int:
    """Delete every slice of tpujob in the project whose claim is over, whichever machine made it. Needs no local state.

    With --quiet it prints nothing unless there is something to do. Exits with 75 unless every zone's list was complete and
    everything unclaimed is proven absent.
    """
    quiet = console().is_quiet
    if local:
        if zone or all_zones or dry_run or as_json:
            raise UserError("--local goes with --cloud and --project only")
        own = client.finish_own(open_session(cloud, project, quiet=quiet, light=True))
        if not quiet:
            emit(f"{own.released} released, {own.unproven} not proven, {own.claimed} claimed")
        return 0
    if not traits_on(on).by_target:
        if zone or all_zones or cloud or project:
            raise UserError("--on gke goes with --namespace, --context and --cluster: a cluster has no zones here")
        where = client.area_of(on, parts=namespace or (), context=context, cluster=cluster)
    elif namespace or context or cluster:
        raise UserError("--namespace, --context and --cluster go with `--on gke`")
    elif zone and all_zones:
        raise UserError("give --zone or --all-zones, not both")
    else:
        where = client.area_of(on, cloud, project, zone or ())
    result = client.collect_garbage(console().reporter, where, dry_run=dry_run, quiet=quiet)
    if as_json:
        emit_json(result.as_json())
    elif not quiet or result.ended or not result.done:
        emit_wrapped(lines(result))
    for alert in result.alerts:
        console().alert(alert)
    return result.exit_code


def lines(result: client.GcResult) -> Iterator[str]:
    """Yield one line for each slice and each incomplete zone, and the counts."""
    failed = "would delete" if result.dry_run else "NOT PROVEN ABSENT"
    for each in result.ended:
        why = f"{each.why}; {each.problem}" if each.problem else each.why
        yield _row("deleted" if each.gone else failed, each, each.price, why)
    for each in result.claimed:
        yield _row("claimed", each, f"until {day_clock(each.until)}")
    for each in result.doubtful:
        yield _row("doubtful", each, each.why)
    for zone, why in result.incomplete.items():
        yield "\t".join(("incomplete", zone, why))
    areas = f"{traits_of(result.cloud).area}s"
    seen = f"{len(set(result.zones) - set(result.incomplete))} of {len(result.zones)} {areas} complete"
    counts = f"{len(result.ended)} unclaimed, {len(result.claimed)} claimed, {len(result.doubtful)} doubtful"
    yield f"{counts}; {seen}"


def _row(verdict: str, each: client.FoundSlice, *rest: str) -> str:
    return "\t".join((verdict, each.node, each.zone, each.accelerator_type, *rest))
