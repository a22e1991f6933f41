"""Which slice a name means, beside jobs on clusters, and what a project says it has."""

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from orchestrator.api.guarantee import forget
from orchestrator.api.jobs.runs import attach
from orchestrator.api.results import logs
from orchestrator.api.session import lookup
from orchestrator.api.session.reporter import Reporter
from orchestrator.api.session.session import Session
from orchestrator.api.slices import down, offers, shell, up
from orchestrator.cli.commands.slices.status import cells
from orchestrator.errors import AuthError, CloudUnavailable, Interrupted, UnknownRun, UserError
from orchestrator.places.vms.known import AVAILABILITY, known_availability
from orchestrator.promise.effects.locks import FileLocks
from orchestrator.promise.lease.changes import (
    AttemptEnded,
    Began,
    Created,
    CreateSent,
    Detached,
    Gone,
    Intent,
    Leased,
    Ready,
    ReleaseBegan,
)
from orchestrator.promise.lease.cloud_api import Listing
from orchestrator.promise.lease.lease import Lease, LeaseState, Purpose
from orchestrator.promise.lease.run_and_attempt import Attempt, AttemptState, RunRecord
from orchestrator.promise.lease.run_spec import RunSpec
from orchestrator.promise.ledger.rows import SweepRecord, VariantRecord
from orchestrator.promise.recover import close_attempts
from orchestrator.settings import GKE, Target
from tests.fakes.leases import lease_and_request
from tests.unit.cli.test_transcripts import row

PODS = "alice runs in pods of a cluster"


def on_cluster() -> Lease:
    return replace(lease_and_request(1)[0], cloud=GKE, run="r1")


def session(directory: Path, *leases: Lease, cloud: str = "emulated") -> Session:
    made = Session(Target(cloud, cloud), directory)
    made.ledger.record(*map(Intent, leases))
    return made


@pytest.fixture
def known(tmp_path: Path) -> Session:
    """Runs whose ids begin alike, one of them named by the beginning of another's id, a sweep and a slice."""
    leases = lease_and_request()[0], lease_and_request(1)[0]
    made = session(
        tmp_path,
        replace(leases[0], id="abf1111111", handle="abe", run="abc1111111"),
        replace(leases[1], id="eee1111111", handle="abc2222222"),
    )
    for identity, name, ended in (
        ("abc1111111", "mnist", False),
        ("abc2222222", "mnist", True),
        ("abd1111111", "abc", False),
        ("acd1111111", "twice", False),
        ("acd2222222", "twice", False),
        ("aed1111111", "s", True),
    ):
        run = RunRecord(identity, name, "j.yaml", "emulated", float(identity == "aed1111111"), str(tmp_path))
        made.ledger.record(Began(run, Attempt(f"{identity}-1", identity)))
        if ended:
            made.ledger.record(AttemptEnded(f"{identity}-1", 2.0, AttemptState.FAILED))
    for identity, name in (("abe1111111", "s"), ("bbb1111111", "t")):
        variants = tuple(VariantRecord(number, f"{name}-{number}") for number in (1, 2, 3))
        made.ledger.record_sweep(SweepRecord(identity, name, "s.yaml", 0.5, variants))
    return made


@pytest.mark.parametrize(("text", "reads", "acts"), [
    ("abc1111111", "abc1111111", "abc1111111"), ("mnist", "abc2222222", "abc1111111"),
    ("abc", "abd1111111", "abd1111111"),  # never the runs whose ids begin so
    ("abc2", "abc2222222", "abc2222222"),
    ("twice", "acd2222222", "several runs named 'twice' have not ended: acd2222222 .*, acd1111111 "),
    ("ac", "could be any of these: acd2222222, acd1111111", "could be any of these: acd2222222, acd1111111"),
    ("ab", "could be any of these: abd1.*, abe1111111, abf1", "could be any of these"),  # a sweep and a slice, too
    ("abe", "no run 'abe'", "no run 'abe'"),  # the name of a slice, and the beginning of a sweep's id
    ("t", "'t' is a sweep, not a run", "'t' is a sweep"), ("../../x", "there is no run", "there is no run"),
    ("", "there is no run ''", "there is no run ''"),
])  # fmt: skip
def test_a_run_is_named_by_its_id_else_by_its_name_else_by_the_beginning_of_its_id(
    known: Session, text: str, reads: str, acts: str
) -> None:
    for find, expected in ((lookup.run, reads), (lookup.live_run, acts)):
        try:
            assert find(known, text)[0].id == expected
        except UserError as error:
            assert re.search(expected, error.message), error.message


@pytest.mark.parametrize(("text", "found"), [
    ("abe", "abf1111111"), ("abf", "abf1111111"), ("abc1", "abf1111111"), ("abc", None), ("mnist", None),
    ("abc2222222", "eee1111111"),  # called as the id of a run that has ended
])  # fmt: skip
def test_a_slice_is_named_by_its_name_and_by_the_ids_of_its_lease_and_its_run(
    known: Session, text: str, found: str | None
) -> None:
    assert [lease.id for lease in lookup.named(known, text)] == ([found] if found else [])
    assert lookup.held(known, text[:3]) is None or text == "abe"  # `up` takes no beginning of an id for a name


def test_a_slice_of_the_name_is_extended_and_not_the_one_that_an_ended_run_of_that_name_used(tmp_path: Path) -> None:
    used, wanted = (lease_and_request(n, purpose=Purpose.HOLD)[0] for n in (0, 1))
    made = session(tmp_path, replace(used, handle="dev", hold_until=2e9), replace(wanted, handle="train"))
    run = RunRecord("abc1111111", "train", "j.yaml", "emulated", 0.0, str(tmp_path))
    made.ledger.record(Began(run, Attempt("abc1111111-1", run.id, lease_id=used.id)))
    made.ledger.record(AttemptEnded("abc1111111-1", 2.0, AttemptState.SUCCEEDED))
    assert [up._lease_to_extend(made, name).id for name in ("train", run.id)] == [wanted.id, used.id]


def test_up_and_down_of_a_name_wait_for_no_slice_whose_id_begins_so(
    known: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    known.ledger.record(ReleaseBegan("abf1111111", 3.0, "its end"))
    monkeypatch.setattr(known, "on_cloud", Mock(side_effect=Interrupted(2)))
    up._finish_ending(known, "abf")
    assert down._in_ledger(known, "abf") == []
    with pytest.raises(Interrupted):
        up._finish_ending(known, "abe")


def test_the_newest_of_a_name_is_a_sweep_or_a_run(known: Session) -> None:
    assert lookup.runs_of(known, "s")[0] is None and lookup.live_sweep(known, "s") is None
    assert lookup.live_sweep(known, "abe1").name == "s"
    with pytest.raises(UnknownRun, match="no variant of the sweep 't' was run yet"):
        lookup.runs_of(known, "t")
    with pytest.raises(UnknownRun) as caught:
        lookup.run(known, "t")
    assert caught.value.hint == "its runs are t-1 to t-3; `tpujob compare t` shows all"


def test_a_slice_is_found_though_a_job_on_a_cluster_has_its_name(tmp_path: Path) -> None:
    held = lease_and_request(0, purpose=Purpose.HOLD)[0]
    found = session(tmp_path, held, on_cluster())
    assert lookup.require(found, "alice").id == held.id


@pytest.mark.parametrize("cloud", ["emulated", GKE])
def test_a_name_that_only_a_job_on_a_cluster_has_is_refused(tmp_path: Path, cloud: str) -> None:
    with pytest.raises(UserError, match=PODS):
        lookup.require(session(tmp_path, on_cluster(), cloud=cloud), "alice")


def test_a_job_on_a_cluster_is_named_where_the_slice_of_its_name_is_being_deleted(tmp_path: Path) -> None:
    held = replace(lease_and_request(0, purpose=Purpose.HOLD)[0], state=LeaseState.DOWN)
    with pytest.raises(UserError, match=PODS):
        lookup.require(session(tmp_path, held, on_cluster()), "alice")


def test_a_name_that_nothing_has_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no slice named 'bob'"):
        lookup.require(session(tmp_path, on_cluster()), "bob")


@pytest.mark.parametrize("command", [shell.config_of, up.stop, up.start, partial(up.extend, by_s=60.0), forget.forget])
@pytest.mark.parametrize(("leases", "hint"), [
    ((lease_and_request()[0],), f"alive: alice ({lease_and_request()[0].name.node})"), ((), "`tpujob up` creates one"),
], ids=["one is alive", "none is"])  # fmt: skip
def test_beside_a_name_that_no_slice_has_stand_those_that_are_alive(
    tmp_path: Path, command: Any, leases: tuple[Lease, ...], hint: str
) -> None:
    made = session(tmp_path, *leases)
    made.recover = Mock()  # type: ignore[method-assign]
    more = {"verified": False, "reason": ""} if command is forget.forget else {}
    with pytest.raises(UserError, match="there is no slice named 'alcie'") as refused:
        command(made, "alcie", **more)
    assert refused.value.hint == hint


@pytest.mark.parametrize(("text", "nearest"), [("mnsit", "nearest: mnist; "), ("twise", "nearest: twice; "), ("x", "")])
def test_beside_a_name_that_no_run_has_stand_those_that_look_like_it(known: Session, text: str, nearest: str) -> None:
    with pytest.raises(UnknownRun) as refused:
        lookup.run(known, text)
    assert refused.value.hint == f"{nearest}`tpujob list` shows the runs"


# Is a detached run followed by a process that collects its results? `tpujob status` shows it.


def test_a_run_is_followed_while_a_process_has_the_lock_of_its_attempt(tmp_path: Path) -> None:
    session = Session(Target("emulated", "emulated"), tmp_path)
    lease, _ = lease_and_request()
    run, attempt = RunRecord("r1", "job", "job.yaml", "emulated", 1.0, str(tmp_path)), Attempt("r1-1", "r1")
    session.ledger.record(Intent(lease), Began(run, attempt), Leased(attempt.id, 2.0, lease.id))
    other = FileLocks(session.locks.directory)
    assert not lookup.is_followed(session, lease)
    assert other.lock(attempt.id)
    assert lookup.is_followed(session, lease)
    assert not lookup.is_followed(session, replace(lease, id="another"))
    other.unlock(attempt.id)
    assert not lookup.is_followed(session, lease)


@pytest.mark.parametrize(
    ("cloud", "seen"), [(GKE, Created("0000000000", 3.0, "its pods wait")), ("emulated", Ready("0000000000", 3.0))]
)
def test_no_other_command_ends_the_attempt_that_an_attach_is_finishing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cloud: str, seen: Created | Ready
) -> None:
    mine, other = (Session(Target("emulated", "emulated"), tmp_path) for _ in range(2))
    spec = RunSpec.of({"cluster": {"phases": ["main"]}, "limits": {"max_duration": 60}})
    lease = replace(lease_and_request()[0], cloud=cloud, run="r1")
    run, attempt = RunRecord("r1", "job", "job.yaml", cloud, 1.0, str(tmp_path), spec), Attempt("r1-1", "r1")
    mine.ledger.record(Intent(lease), CreateSent(lease.id, 2.0), Began(run, attempt), Leased(attempt.id, 2.0, lease.id))
    mine.ledger.record(seen, Detached(lease.id, 4.0))

    def collected_and_released(build: object, cloud: str) -> None:
        mine.ledger.record(ReleaseBegan(lease.id, 5.0, "the run ended"), Gone(lease.id, 6.0, "absent"))
        other.run(close_attempts())
        mine.ledger.record(AttemptEnded.by(attempt.id, 7.0, AttemptState.SUCCEEDED, None))
        raise Interrupted(2)

    monkeypatch.setattr(Session, "recover", lambda session, look: None)
    monkeypatch.setattr(mine, "on_cloud", collected_and_released)
    with pytest.raises(Interrupted):
        attach(mine, "r1")
    assert mine.ledger.attempt(attempt.id).state is AttemptState.SUCCEEDED


def test_who_follows_the_log_waits_for_the_end_of_the_job_where_no_process_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[Any] = []
    session = Session(Target("emulated", "emulated"), tmp_path, reporter=Reporter(events.append))
    other, log = FileLocks(session.locks.directory), tmp_path / "logs" / "worker0.log"
    lease = replace(lease_and_request()[0], run="r1", deadline=session.now("emulated") + 3600)
    run = RunRecord("r1", "job", "job.yaml", "emulated", 1.0, str(tmp_path))
    first, last = Attempt("r1-1", "r1"), Attempt("r1-2", "r1")

    def turns() -> Iterator[None]:
        end = AttemptEnded.by(first.id, 2.0, AttemptState.INTERRUPTED, None)
        assert other.lock(last.id)
        session.ledger.record(end, Began(run, last, 3.0), Leased(last.id, 4.0, lease.id))
        other.unlock(first.id)
        yield
        session.ledger.record(CreateSent(lease.id, 4.0), Ready(lease.id, 5.0), Detached(lease.id, 6.0))
        other.unlock(last.id)  # `submit` ends, and the collector is not there yet
        yield from (None, None, None)
        log.write_text("begun\nended\n")
        session.ledger.record(AttemptEnded.by(last.id, 9.0, AttemptState.SUCCEEDED, None))
        yield

    asked, turn = session.locks.is_locked, turns()
    session.ledger.record(Intent(lease), Began(run, first))
    assert other.lock(first.id)
    log.parent.mkdir()
    log.write_text("begun\n")
    monkeypatch.setattr(session.locks, "is_locked", lambda name: (next(turn), asked(name))[1])
    monkeypatch.setattr(Session, "recover", lambda session: None)
    monkeypatch.setattr(logs, "POLL_S", 0.0)
    monkeypatch.setattr(logs, "ALONE_POLLS", 2)
    assert [each.lines for each in logs.read_logs(session, "r1", follow=True)] == [("begun",), ("ended",)]
    assert [each.text for each in events] == ["no process here fetches the log; `tpujob attach r1` does"]


@pytest.mark.parametrize(("followed", "shown"), [(True, "detached, followed"), (False, "detached")])
def test_status_shows_it_for_a_detached_run(followed: bool, shown: str) -> None:
    job = row("job", mode="detached", followed=followed, now=1.0, deadline=2.0, ends_at=2.0)
    assert cells(job)[4] == f"{shown}, until 00:00:02Z"


class Cloud:
    """Three zones, of which some do not answer."""

    def __init__(self, **silent: Exception) -> None:
        self.silent = silent

    def zones(self, project: str) -> Listing[str]:
        return Listing(("a", "b", "c"))

    def accelerator_types(self, project: str, zone: str) -> Listing[str]:
        if zone in self.silent:
            raise self.silent[zone]
        return Listing((f"v4-{project}", f"v6e-{zone}"))


def asked_by(directory: Path, project: str = "p") -> Any:
    return SimpleNamespace(
        reporter=Reporter(lambda event: None),
        directory=directory,
        target=SimpleNamespace(kind="google", project=project),
    )


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Cloud]:
    clouds: list[Cloud] = []
    monkeypatch.setattr("orchestrator.api.session.connections.connect", lambda target, secrets: clouds[-1])
    return clouds


def test_what_every_zone_said_is_remembered_for_this_project_only(tmp_path: Path, asked: list[Cloud]) -> None:
    assert known_availability(asked_by(tmp_path)) is None
    asked.append(Cloud(b=CloudUnavailable("timed out")))
    found = offers.ask_again(asked_by(tmp_path))
    assert found.zones == {"a": ("v4-p", "v6e-a"), "c": ("v4-p", "v6e-c")} and found.unreachable == {"b": "timed out"}
    assert known_availability(asked_by(tmp_path)) == found
    assert known_availability(asked_by(tmp_path, "other")) is None
    assert [path.name for path in tmp_path.iterdir()] == [AVAILABILITY]


def test_when_no_zone_answers_the_old_answer_stays(tmp_path: Path, asked: list[Cloud]) -> None:
    asked.append(Cloud())
    before = offers.ask_again(asked_by(tmp_path))
    asked.append(Cloud(a=AuthError("denied"), b=AuthError("denied"), c=AuthError("denied")))
    with pytest.raises(AuthError, match="denied"):
        offers.ask_again(asked_by(tmp_path))
    assert known_availability(asked_by(tmp_path)) == before


def test_a_file_that_cannot_be_read_is_as_if_there_was_none(tmp_path: Path) -> None:
    (tmp_path / AVAILABILITY).write_text("{")
    assert known_availability(asked_by(tmp_path)) is None
