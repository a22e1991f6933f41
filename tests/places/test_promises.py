"""What every place promises, played on every ground. A row is one sentence; nothing but the table excuses a place from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from importlib import import_module
from typing import Any

import pytest

from orchestrator import traits as place_traits
from orchestrator.errors import JobSpecError
from orchestrator.job import job_spec
from orchestrator.promise.lease.run_and_attempt import AttemptState
from orchestrator.traits import Traits
from tests.cli_fixture import in_ci
from tests.places.ground import BEGUN, CREATED, KILLED, Command, Ground, GroundWithFiles, Job
from tests.places.grounds import GROUNDS, REFUSED, mark
from tests.places.toy.place import TRAITS as OF_TOY
from tests.waiting import until

# A place of which none of these traits is true is excused from the promise.
EXCUSED_WITHOUT = {
    "intent": ("billed",),  # it asks no cloud for anything
    "proof": ("billed",),
    "detached": ("held", "made_with_job"),  # its jobs end with the command
}
PLAYED: dict[str, list[str]] = {}  # by promise: the grounds
FILES = {"result.txt": "7\n", "deep/er/log.csv": "a,b\n" * 300, "empty": ""}


def promise(name: str, *, needs_bytes: bool = False, quickly: bool = False) -> Callable[[Any], Any]:
    """Play a row on every ground whose place makes this promise; `quickly`: only where a command takes no time."""
    played = [
        ground
        for ground, (made, _) in GROUNDS.items()
        if not excused(name, made.traits) and made.has_bytes >= needs_bytes and made.is_quick >= quickly
    ]
    PLAYED.setdefault(name, []).extend(played)
    return pytest.mark.parametrize("ground", [mark(each, name) for each in played], indirect=True)


def excused(name: str, traits: Traits) -> bool:
    return name in EXCUSED_WITHOUT and not any(getattr(traits, each) for each in EXCUSED_WITHOUT[name])


def nothing_is_left(ground: Ground, state: AttemptState, code: int | None) -> None:
    """Nothing exists, nothing is owed, and the ledger says how the run ended."""
    until(lambda: not ground.left(), "nothing")  # of a process that is killed, its job ends a moment later
    assert not ground.owes()
    assert (ground.attempt().state, ground.attempt().exit_code) == (state, code)


def begun(ground: Any, verb: str = "run", **job: Any) -> Command:
    """Begin a command, with this job if one is described, and wait until the job says so to it."""
    if job:
        ground.job(Job(**job))
    command: Command = ground.start(verb)
    command.until_begun()
    return command


# -- one run ---------------------------------------------------------------------------------------------------------------


@promise("intent")
def test_what_is_asked_for_is_recorded_before_it_is_created(ground: Ground) -> None:
    ground.job(Job(waits=True))
    assert ground.start("run", CREATED).code() == KILLED
    assert ground.left() and all(any(name in each for name in ground.asked()) for each in ground.left())
    ground.next_commands()
    nothing_is_left(ground, AttemptState.INTERRUPTED, 71)


@promise("end")
@pytest.mark.parametrize(("code", "state"), [(0, AttemptState.SUCCEEDED), (7, AttemptState.FAILED)])
def test_a_run_ends_with_the_code_of_its_job(ground: Ground, code: int, state: AttemptState) -> None:
    ground.job(Job(code=code))
    assert ground.play("run")[0] == code
    nothing_is_left(ground, state, code)


@promise("follow", needs_bytes=True)
def test_every_byte_of_the_log_arrives_once_and_in_order(ground: GroundWithFiles) -> None:
    job = Job((BEGUN, *(f"line {number} {'x' * number}" for number in range(200)), "last ü"), ("early", "  ready"))
    ground.job(job)
    code, said = ground.play("run")
    assert code == 0, said
    assert ground.log() == "".join(f"{line}\n" for line in (*job.setup, *job.lines))
    shown = [line.removeprefix("worker0 | ") for line in said.splitlines()]
    assert [line for line in shown if line in (*job.setup, *job.lines)] == [*job.setup, *job.lines]


@promise("results", needs_bytes=True)
@pytest.mark.parametrize("code", [0, 7])
def test_results_are_complete_also_those_of_a_job_that_fails(ground: GroundWithFiles, code: int) -> None:
    ground.job(Job(files=FILES, code=code))
    assert ground.play("run")[0] == code
    assert {path: text for path, text in ground.results().items() if path in FILES} == FILES


@promise("damage", needs_bytes=True)
def test_a_result_that_is_missing_is_said_and_ends_with_65(ground: GroundWithFiles) -> None:
    manifest = '{"schema": 1, "files": [{"path": "gone.bin", "size_bytes": 1, "sha256": "00"}]}'
    ground.job(Job(files={**FILES, "manifest.json": manifest}))
    code, said = ground.play("run")
    assert code == 65 and "gone.bin" in said and FILES.items() <= ground.results().items()
    nothing_is_left(ground, AttemptState.FAILED, 65)


@promise("setup", needs_bytes=True)
def test_a_setup_that_fails_is_called_so_and_the_job_does_not_start(ground: GroundWithFiles) -> None:
    ground.job(Job(setup=("early",), setup_code=3))
    code, said = ground.play("run")
    assert code == 3 and "the setup failed on worker0 with code 3" in said and ground.log() == "early\n"
    nothing_is_left(ground, AttemptState.FAILED, 3)


@promise("limit")
def test_a_job_that_reaches_its_limit_is_stopped_and_ends_with_124(ground: Ground) -> None:
    ground.job(Job(is_short=True, files=FILES))
    assert ground.play("run")[0] == 124
    nothing_is_left(ground, AttemptState.FAILED, 124)
    if isinstance(ground, GroundWithFiles):
        assert FILES.items() <= ground.results().items()


# -- ended by its user -----------------------------------------------------------------------------------------------------


@promise("cancel")
def test_a_run_is_canceled_from_another_process(ground: Ground) -> None:
    run = begun(ground, waits=True)
    assert ground.play("cancel")[0] == 0
    assert run.code() == 71
    nothing_is_left(ground, AttemptState.CANCELED, 71)


@promise("interrupt")
def test_ctrl_c_stops_the_job_and_ends_with_130(ground: Ground) -> None:
    run = begun(ground, waits=True)
    run.press()
    assert run.code() == 130
    nothing_is_left(ground, AttemptState.INTERRUPTED, 130)


# -- each way to die -------------------------------------------------------------------------------------------------------


@promise("death")
def test_a_run_that_is_killed_at_any_effect_leaves_nothing_once_the_next_command_has_run(ground: Ground) -> None:
    dies_at_every_effect(ground, "run")


@promise("detached", quickly=True)
@pytest.mark.parametrize("verb", ["attach", *in_ci("submit", "cancel")])
def test_a_detached_job_ends_well_when_any_process_is_killed_at_any_effect(ground: Ground, verb: str) -> None:
    dies_at_every_effect(ground, verb)


def dies_at_every_effect(ground: Ground, verb: str) -> None:
    """A job that runs detached may go on: then `attach` brings its end."""
    died = 0
    for at in ground.points():
        ground.job(Job())
        if verb in ("attach", "cancel"):
            assert ground.play("submit")[0] == 0
        code = ground.start(verb, at).code()
        ground.next_commands()
        if ground.owes():
            assert verb != "run" and ground.play("attach")[0] == 0, at
        until(lambda: not ground.left(), f"nothing, after {verb} was killed at {at}")
        assert not ground.owes() and (not ground.has_runs() or ground.attempt().state.ended), at
        if code != KILLED:
            break
        died += 1
    assert died >= ground.deaths


@promise("power")
def test_what_runs_when_everything_here_is_dead_is_ended_by_the_place_within_its_bound(ground: Ground) -> None:
    run = begun(ground, waits=True)
    ground.power_cut(run)
    ground.until_it_ends_by_itself()
    ground.next_commands()
    nothing_is_left(ground, AttemptState.INTERRUPTED, 71)


# -- detached --------------------------------------------------------------------------------------------------------------


@promise("detached")
@pytest.mark.parametrize(("code", "state"), [(0, AttemptState.SUCCEEDED), (7, AttemptState.FAILED)])
def test_a_detached_job_goes_on_and_who_attaches_brings_it_to_the_same_end(
    ground: Ground, code: int, state: AttemptState
) -> None:
    ground.job(Job((BEGUN, "after"), ("early",), files=FILES, code=code, waits=True))
    assert ground.play("submit")[0] == 0
    assert ground.left() and ground.owes() and not ground.attempt().state.ended
    begun(ground, "attach").kill()
    left = begun(ground, "attach")
    left.press()
    assert left.code() == 130
    ground.next_commands()
    assert ground.left() and ground.owes() and not ground.attempt().state.ended
    last = begun(ground, "attach")
    ground.next_commands()  # they leave it to the one that follows it
    ground.let_go()
    assert last.code() == code
    nothing_is_left(ground, state, code)
    if isinstance(ground, GroundWithFiles):
        assert ground.log() == "early\nbegun\nafter\n" and FILES.items() <= ground.results().items()


# -- the proof -------------------------------------------------------------------------------------------------------------


@promise("proof")
def test_a_delete_that_takes_long_is_waited_for(ground: Ground) -> None:
    run = begun(ground, waits=True)
    ground.delete_slowly()
    ground.let_go()
    assert run.code() == 0
    assert ground.left() == [] and not ground.owes(), "at the moment at which it ends"
    nothing_is_left(ground, AttemptState.SUCCEEDED, 0)


@promise("proof")
def test_a_delete_that_never_works_ends_with_75_and_is_never_called_gone(ground: Ground) -> None:
    run = begun(ground, waits=True, gives_up=True)
    ground.delete_slowly(never=True)
    ground.let_go()
    assert run.code() == 75 and "NOT VERIFIED GONE" in run.said
    assert ground.left() and ground.owes()
    ground.delete_again()
    ground.next_commands()
    nothing_is_left(ground, AttemptState.SUCCEEDED, 0)


# -- secrets ---------------------------------------------------------------------------------------------------------------


@promise("secrets", needs_bytes=True)
def test_a_secret_is_in_no_log_ledger_file_argument_or_label(ground: GroundWithFiles) -> None:
    secret = "hunter2-hunter2"
    run = begun(ground, lines=(BEGUN, "it is $SECRET."), files=FILES, waits=True, secret=secret)
    assert not [line for line in ground.command_lines() if secret in line]
    assert ground.left() and secret not in ground.published() and ground.holding(secret) == []
    ground.let_go()
    assert run.code() == 0
    assert "it is " in ground.log() and secret not in run.said and ground.holding(secret) == []


# -- refusals --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", place_traits.NAMES)
def test_what_a_place_refuses_of_a_job_names_the_file_the_line_and_the_key_before_anything_is_asked(place: str) -> None:
    with pytest.raises(JobSpecError) as refused:
        job_spec.load(f"command: train\non: {place}\n{REFUSED[place]}\n", path="job.yaml")
    assert f"job.yaml:3: {REFUSED[place].partition(':')[0]}" in str(refused.value)


# -- the table -------------------------------------------------------------------------------------------------------------

PLACES = {name: import_module(f"orchestrator.places.{name}.traits").TRAITS for name in place_traits.NAMES}
PLACES["toy"] = OF_TOY


@pytest.mark.parametrize("place", PLACES)
def test_every_place_keeps_every_promise_from_which_a_trait_that_it_lacks_does_not_excuse_it(place: str) -> None:
    for name, played in PLAYED.items():
        lacks = name in EXCUSED_WITHOUT and {getattr(PLACES[place], each) for each in EXCUSED_WITHOUT[name]} == {False}
        assert any(GROUNDS[each][0].place == place for each in played) is not lacks, name


def test_the_table_knows_only_promises_that_are_played_and_traits_that_a_place_may_lack() -> None:
    kinds = {field.name for field in fields(Traits) if isinstance(getattr(OF_TOY, field.name), bool)}
    assert (
        EXCUSED_WITHOUT.keys() <= PLAYED.keys()
        and {each for some in EXCUSED_WITHOUT.values() for each in some} <= kinds
    )
    assert not [name for name in PLAYED if excused(name, OF_TOY)], "the toy place passes the whole suite"
