"""`tpujob gc|install-gc`: delete slices without a claim, from any machine; finish what this one owes, once or by a timer."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from orchestrator.api.guarantee import timers
from orchestrator.api.guarantee.gc import FoundSlice, GcResult
from orchestrator.cli import completion
from orchestrator.cli.console.output import console, emit, emit_json, emit_wrapped, open_client
from orchestrator.cli.options import Cloud, Json, Option, Project
from orchestrator.errors import UserError
from orchestrator.text.units import day_clock, parse_duration


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
    quiet, client = console().is_quiet, open_client(cloud, project)
    if local:
        if zone or all_zones or dry_run or as_json:
            raise UserError("--local goes with --cloud and --project only")
        own = client.finish_own(quiet=quiet)
        if not quiet:
            emit(f"{own.released} released, {own.unproven} not proven, {own.claimed} claimed")
        return 0
    if not client.has_zones(on):
        if zone or all_zones or cloud or project:
            raise UserError("--on gke goes with --namespace, --context and --cluster: a cluster has no zones here")
        where: dict[str, Any] = {"parts": namespace or (), "context": context, "cluster": cluster}
    elif namespace or context or cluster:
        raise UserError("--namespace, --context and --cluster go with `--on gke`")
    elif zone and all_zones:
        raise UserError("give --zone or --all-zones, not both")
    else:
        where = {"cloud": cloud, "project": project, "parts": zone or ()}
    result = client.collect_garbage(on, dry_run=dry_run, quiet=quiet, **where)
    if as_json:
        emit_json(result.as_json())
    elif not quiet or result.ended or not result.done:
        emit_wrapped(lines(result))
    if result.hint:
        console().notice("hint", result.hint)
    for alert in result.alerts:
        console().alert(alert)
    return result.exit_code


def lines(result: GcResult) -> Iterator[str]:
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
    areas = f"{result.area}s"
    seen = f"{len(set(result.zones) - set(result.incomplete))} of {len(result.zones)} {areas} complete"
    counts = f"{len(result.ended)} unclaimed, {len(result.claimed)} claimed, {len(result.doubtful)} doubtful"
    yield f"{counts}; {seen}"


def _row(verdict: str, each: FoundSlice, *rest: str) -> str:
    return "\t".join((verdict, each.node, each.zone, each.accelerator_type, *rest))


SHORTEST_S, LONGEST_S = 60, 86400


def install_gc(
    every: Annotated[str, Option("--every", metavar="DURATION", help="How often, such as 5m or 1h.")] = "5m",
    show: Annotated[bool, Option("--print", help="Print what would be written, and write nothing.")] = False,
    uninstall: Annotated[bool, Option("--uninstall", help="Remove the timer.")] = False,
) -> None:
    """Install a timer that runs `tpujob gc --local` every few minutes: a systemd timer, a launchd agent or a cron line.

    It keeps today's state directory, cloud and project, whatever the environment is later.
    """
    if uninstall:
        removed = timers.uninstall()
        emit(f"removed: {', '.join(removed)}" if removed else "none was installed")
        return
    every_s = every_seconds(every)
    if show:
        for where, text in timers.preview(every_s).items():
            emit(f"# {where}")
            emit(text)
        return
    timer = timers.install(every_s)
    emit(f"installed: {timer.summary}, every {every}")
    for where in timer.written:
        console().notice("wrote", where)
    console().notice("queue", "it makes a pass over the queue each time, if this machine has one (docs/queue.md)")
    if timer.ends_at_logout:
        console().notice("note", "it runs while you are logged in; `loginctl enable-linger` keeps it running")


def every_seconds(text: str) -> int:
    """Return the seconds of `--every`. Raises UserError unless they are whole minutes up to 1h or whole hours up to 24h."""
    try:
        every_s = parse_duration(text, "1m", "24h")
    except ValueError as error:
        raise UserError(f"--every: {text!r}: {error}") from error
    if not SHORTEST_S <= every_s <= LONGEST_S or every_s % 60 or (every_s > 3600 and every_s % 3600):
        raise UserError(
            f"--every: {text!r} must be whole minutes up to 1h, or whole hours up to 24h", hint="5m is usual"
        )
    return int(every_s)
