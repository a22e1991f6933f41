"""The pods of a job, one or several: their places, the results of all, and ends that come late, in parts or not at all."""

import itertools
import json
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import AuthError, CloudError, CloudUnavailable, Unreachable, Vanished
from orchestrator.hosts.fleet.crew import Crew
from orchestrator.hosts.fleet.follow import WorkerState
from orchestrator.hosts.ssh import agent
from orchestrator.hosts.transfer.collect import CollectRequest, CollectResult
from orchestrator.hosts.transfer.extract import CHANGED
from orchestrator.places.gke.objects import pod_api
from orchestrator.places.gke.objects.pod_api import PodView
from orchestrator.places.gke.pods import fleet, follower
from orchestrator.places.gke.pods.collection import LOST, collected_from
from orchestrator.places.gke.pods.index import ReadResult
from orchestrator.places.google.objects import Objects
from orchestrator.places.preparation.phases import POD_DATA
from orchestrator.text.scripts import with_data
from tests.emulator.fixture import Emulator
from tests.fakes.pods import Node, Pod, place, request
from tests.unit.places.gke.pods.conftest import Followed
from tests.waiting import HANG_S, until

Make = Callable[..., Followed]


def ended(pod: Pod, names: str = "abcdefgh") -> None:
    """Let a job end with these results, of which each has its name in it. Between its lines are ten seconds."""
    pod.clock = itertools.count(1_800_000_000.0, 10.0).__next__
    pod.begins()
    pod.ends()
    for name in names:
        pod.row(name, name.encode())
    pod.sends(40)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "RETRY_FIRST_S", 0.0)
    monkeypatch.setattr(follower, "RETRY_MOST_S", 0.01)


@pytest.mark.parametrize("after_bytes", [0, 300])
def test_a_log_that_breaks_off_between_node_and_api_server_is_no_whole_log(
    node: Node, followed: Make, after_bytes: int
) -> None:
    pod = node.run(request(("main", "echo line; echo small >$TPUJOB_ARTIFACTS/small")))
    until(lambda: pod.view().phase.ended, "the end of the pod")
    node.cuts, node.cuts_are_quiet = [after_bytes] * 2, True
    seen = followed()
    assert seen.end().rc == 0 and seen.log == b"line\n" and node.cuts == []
    found = seen.collect()
    assert not found.problems and [file.path for file in found.files] == ["artifacts/small"]


@pytest.mark.ci
@pytest.mark.parametrize("first", [b"150000", b'::tpujob {"n": '])
def test_a_setup_whose_end_is_gone_has_succeeded_where_main_has_begun_and_what_is_gone_is_counted(
    node: Node, followed: Make, first: bytes
) -> None:
    pod = node.run(request(("setup", "echo s"), ("main", "seq 1 200000")))
    until(lambda: pod.closed, "the end of the pod")
    main = [at for at, part in enumerate(pod.parts) if part.content.startswith(first) and b"setup" not in part.content]
    pod.rotate(next(at for at in main if at > 100))  # to a line of the log, or to a mark
    seen = followed()
    end = seen.end("setup")
    assert (end.state, end.rc, seen.log) == (WorkerState.EXITED, 0, b"")
    end, log = seen.end("main"), (pod.place / "run" / "r1-1" / "main" / "log").read_bytes()
    assert (end.state, end.rc, end.log_bytes) == (WorkerState.EXITED, 0, len(log)) and log.endswith(seen.log)
    gone = f"{len(log) - len(seen.log):,} bytes of its log are gone"
    assert seen.log and seen.notices == [f"worker0: {gone}: the node keeps the last part only"]


@pytest.mark.parametrize("begin", range(8))
def test_so_has_one_of_which_only_results_are_left_and_those_are_whole_or_named(
    node: Node, followed: Make, begin: int
) -> None:
    ended(node.pod(), "a")  # in the lines 3 to 6
    assert len(node.pod().parts) == 8
    node.pod().rotate(begin)
    seen = followed()
    assert [seen.end(phase).state for phase in ("setup", "main")] == [WorkerState.EXITED] * 2
    found = seen.collect()
    assert [file.path for file in found.files] == ["a"] * (begin <= 3)
    assert [str(problem) for problem in found.problems] == [f"worker0: (the rest): {LOST}"] * (begin > 3)


@pytest.mark.parametrize(("phase", "states", "sent", "problems"), [
    ("main", [WorkerState.EXITED, WorkerState.LOST], {"results_bytes": None}, []),
    ("setup", [WorkerState.LOST], {"results_bytes": None}, []),
    pytest.param("setup", [WorkerState.LOST], {}, ["(the rest)"], id="of another version, whose results are not read"),
])  # fmt: skip
def test_so_has_one_of_which_only_the_end_is_left(
    node: Node, followed: Make, phase: str, states: list[WorkerState], sent: dict[str, Any], problems: list[str]
) -> None:
    node.pod().says(of=None, pod={})
    node.pod().says(of=phase, end={"phase": phase, "rc": None, "why": "stalled", **sent})
    node.pod().close()
    node.pod().rotate(1)
    seen = followed()
    assert [seen.end(each).state for each in ("setup", "main")[: len(states)]] == states
    assert [problem.path for problem in seen.collect().problems] == problems


def test_main_that_is_attached_as_the_following_ends_has_its_end(
    node: Node, followed: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Setup succeeded, and the time was over before main began."""
    concluded, attached = threading.Event(), threading.Event()
    conclude = follower.Follower._conclude

    def slowly(self: follower.Follower, view: PodView | None) -> None:
        conclude(self, view)
        concluded.set()
        attached.wait()

    monkeypatch.setattr(follower.Follower, "_conclude", slowly)
    node.pod().begins("setup")
    node.pod().ends(phase="setup")
    node.pod().says(of="setup", end={"rc": 0, "phase": "setup", "why": "deadline"})
    node.pod().close()
    seen = followed()
    assert seen.end("setup").rc == 0
    concluded.wait()
    seen.follow("main")
    attached.set()
    assert seen.ended().workers[0].why == "deadline"


REFUSED = [Vanished("the pod does not exist")] * (follower.LAST_TRIES - 1)


@pytest.mark.parametrize(("cuts", "errors"), [
    ([1000], [None, *[CloudUnavailable("the API server is away")] * 20]),
    ([700] * 12, [None, *REFUSED, None, *REFUSED, None, *REFUSED]),
], ids=["an outage", "many parts"])  # fmt: skip
def test_the_log_of_an_ended_pod_comes_whole(
    node: Node, followed: Make, cuts: list[int | None], errors: list[CloudError | None]
) -> None:
    ended(node.pod())
    node.cuts = cuts[:]
    node.errors = errors[:]
    seen = followed()
    assert seen.end().rc == 0
    assert not seen.collect().problems and not node.errors


def test_a_connection_that_waits_for_the_next_phase_is_not_taken_for_a_dead_one(
    node: Node, followed: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pods of a failed job are deleted; what has been sent of their logs is still to be read."""
    monkeypatch.setattr(fleet, "WATCH_S", 0.05)
    monkeypatch.setattr(fleet, "SETTLE_S", 0.5)
    monkeypatch.setattr(pod_api, "FRESH_S", 0.0)
    pod = node.pod()
    seen = followed()
    pod.ends(phase="setup")
    seen.follow("setup")
    until(lambda: seen.fleet.wait(1.0).ended, "the end of setup")
    ended(pod)
    (following,) = seen.fleet._following.followers
    until(lambda: following._is_busy, "all that is taken without being asked for")
    node.all.clear()
    seen_before = node.looks
    until(lambda: node.looks >= seen_before + 20, "looks at the pods")  # a second of them
    assert not node.streams[0].closed.is_set()
    seen.end("main")
    assert not seen.collect().problems


@pytest.mark.parametrize("error", [CloudUnavailable("away"), AuthError("you may not read it")])
def test_an_index_that_cannot_be_read_is_no_end_of_a_pod_that_is_gone(
    followed: Make, monkeypatch: pytest.MonkeyPatch, error: CloudError
) -> None:
    monkeypatch.setattr(follower, "OUTAGE_S", 0.05)
    index = json.dumps({"attempt": "r1-1", "rows": [], "note": {"schema": 1, "phase": "main", "rc": 3}}).encode()
    refusals = [error]

    def read(worker: int, path: str) -> Iterator[bytes]:
        if refusals:
            raise refusals.pop()
        yield index

    assert followed(store=read).end().rc == 3
    refusals += [error] * 100_000
    with pytest.raises(type(error)):
        followed(store=read).end()


@pytest.mark.parametrize("error", [AuthError("you may not"), Vanished("it does not exist"), CloudUnavailable("away")])
def test_a_log_that_cannot_be_read_is_given_up_and_not_a_pod_that_sent_nothing(
    node: Node, followed: Make, monkeypatch: pytest.MonkeyPatch, error: CloudError
) -> None:
    monkeypatch.setattr(follower, "OUTAGE_S", 0.05)
    pod = node.run(request(("main", "echo line; echo small >$TPUJOB_ARTIFACTS/small")))
    node.errors = [error] * 100_000
    until(lambda: pod.view().phase.ended, "the end of the pod")
    seen = followed()
    assert seen.end().rc == 0, "its termination message says so"
    (problem,) = seen.collect().waiting
    assert problem.why == f"the log of the pod, which has them, could not be read: {error.message}"


def test_a_setup_that_fails_is_told_with_names_of_any_length_and_main_never_begins(node: Node, followed: Make) -> None:
    script = """
    for i in 1 2 3 4 5 6 7 8; do
        echo "Connection refused host='$i$(printf '漢%.0s' $(seq 400))', port=443"
    done
    echo kept >"$TPUJOB_ARTIFACTS/kept"
    exit 5
    """
    node.run(request(("setup", script), ("main", "echo never")))
    seen, late = followed(), followed()
    end = seen.end("setup")
    assert (end.state, end.rc, end.why) == (WorkerState.EXITED, 5, "") and len(end.unreachable) == 8
    assert [file.path for file in seen.collect().files] == ["artifacts/kept"]
    end = late.end("main")
    assert (end.state, end.rc, end.why, late.log) == (WorkerState.EXITED, 5, "setup", b"")


HANGS = "import socket, time\nsocket.getaddrinfo = lambda *_, **__: time.sleep(900)\n"


def test_a_pod_that_waits_for_the_first_one_ends_on_sigterm_though_its_resolver_hangs(
    node: Node, followed: Make, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(HANGS)
    asked = request(("main", "echo never"), coordinator_s=900.0)
    pod = node.run(asked, 0, **place(1), PYTHONPATH=str(tmp_path))
    seen = followed()
    seen.follow()
    until(lambda: pod.parts, "its first words")
    pod.reason = "Preempting"
    pod.kill(signal.SIGTERM)
    end = seen.ended().workers[0]
    assert (end.state, end.why, seen.log) == (WorkerState.LOST, "Preempting", b"")
    until(lambda: pod.view().rc == 143, "its own code")


@pytest.mark.parametrize(("keys", "index", "detail"), [
    ({}, "7", "ValueError: this is pod 7 of 2: its variables contradict each other"),
    ({"phases": None}, "0", "TypeError: "),
    ({"schema": 2}, "0", "ValueError: the request has schema 2, and this program knows 1"),
    ({"phases": [{"name": "../x", "script": ""}]}, "0", "ValueError: bad name '../x'"),
])  # fmt: skip
def test_what_stops_the_program_itself_is_told(
    node: Node, followed: Make, keys: dict[str, Any], index: str, detail: str
) -> None:
    pod = node.run({**request(), **keys}, 0, **{**place(0), "JOB_COMPLETION_INDEX": index})
    end = followed().end()
    assert (end.state, end.why) == (WorkerState.LOST, "failed") and end.detail.startswith(detail)
    until(lambda: pod.view().rc == 71, "its own code")


def test_one_of_two_slices_fails_and_the_other_is_waited_for(node: Node, followed: Make) -> None:
    script = """
    echo $TPUJOB_WORKER of $TPUJOB_WORKERS | tee "$TPUJOB_ARTIFACTS/me"
    [ $TPUJOB_WORKER = 0 ] || exit 5; until [ -e "$TPUJOB_ARTIFACTS/../go" ]; do sleep 0.05; done
    """
    for worker in range(2):
        node.run(request(("main", script)), worker, **place(worker, slices=2, hosts=1))
    seen = followed(2)
    seen.fleet.connect(10.0)
    seen.follow()
    until(lambda: seen.fleet.wait(1.0).workers[1].final, "the end of the second")
    seen.fleet.stop(0.1)  # nothing can be sent; it only waits
    assert not seen.fleet.wait(0.0).workers[0].final
    until((first := node.pod(0).place / "run" / "r1-1").is_dir, "the beginning of the first")
    (first / "go").touch()
    status = seen.ended()
    assert [worker.rc for worker in status.workers] == [0, 5] and status.first_failed == status.workers[1]
    assert not seen.collect().problems and seen.logs == {0: b"0 of 2\n", 1: b"1 of 2\n"}
    assert [seen.result("artifacts/me", worker) for worker in range(2)] == [seen.logs[0], seen.logs[1]]


def test_results_of_any_size_go_through_the_bucket_also_when_the_pod_is_gone(
    node: Node, followed: Make, tmp_path: Path, shared_emulator: Emulator
) -> None:
    script = "cp data/x $TPUJOB_ARTIFACTS/small; cd $TPUJOB_ARTIFACTS; head -c 3000000 /dev/urandom >big; sha256sum big"
    (tmp_path / "x").write_text("small\n")
    objects, place = Objects(emulator=shared_emulator.url), "gs://all-sizes/runs/r1/worker0"
    objects.upload("gs://all-sizes/data/x", tmp_path / "x")
    fetching = with_data("", {"./data": "gs://all-sizes/data"}, agent.command("data"), POD_DATA)
    pod = node.run(
        request(("setup", fetching), ("main", script), bucket="gs://all-sizes/runs"),
        STORAGE_EMULATOR_HOST=shared_emulator.url,
    )

    def read(worker: int, path: str) -> Iterator[bytes]:
        return objects.download(f"gs://all-sizes/runs/r1/worker{worker}/{path}")

    def collected(way: str) -> tuple[Followed, CollectResult]:
        seen = followed(store=read)
        seen.place = tmp_path / way
        seen.place.mkdir()
        assert seen.end().rc == 0
        return seen, seen.collect()

    def late(read: ReadResult, way: str, attempt: str = "r1-1") -> CollectResult:
        return collected_from(read, 1, CollectRequest(attempt, tmp_path / way, ())).within(HANG_S)

    seen, found = collected("there")
    assert not found.problems and {file.path for file in found.files} == {"artifacts/big", "artifacts/small"}
    assert f"{found.files[0].sha256}  big\n".encode() == seen.log
    names = [each.name.partition("worker0/")[2] for each in objects.list(f"{place}/")]
    assert names == ["artifacts/big", "artifacts/small", "index.json"]
    until(lambda: pod.closed, "the end of the pod")
    node.all.clear()
    _, found = collected("gone")
    assert not found.problems and len(found.files) == 2
    came = late(read, "late")
    assert [file.sha256 for file in came.files] == [file.sha256 for file in found.files] and not came.problems
    (other,) = late(read, "late", "r1-2").problems
    assert other.why.endswith("index.json is of another attempt")
    (tmp_path / "x").write_text("other\n")
    objects.delete(f"{place}/artifacts/small")
    objects.upload(f"{place}/artifacts/small", tmp_path / "x")
    objects.delete(f"{place}/artifacts/big")
    _, found = collected("less")
    gone = f"it is gone from the bucket of the job: {place}/artifacts/big does not exist"
    assert [problem.why for problem in found.refused] == [gone, CHANGED]
    assert not found.files and not found.uncollected

    def unsteady(worker: int, path: str) -> Iterator[bytes]:
        if path == "artifacts/big":
            raise CloudUnavailable("away")
        return read(worker, path)

    assert not late(unsteady, "late").problems, "it is here"
    assert [each.why for each in late(unsteady, "later").waiting] == ["it is in the bucket of the job: away"]


def test_a_bucket_that_takes_nothing_is_said_and_has_a_code_of_its_own(
    node: Node, followed: Make, shared_emulator: Emulator
) -> None:
    asked = request(("main", "echo small >$TPUJOB_ARTIFACTS/small"), bucket="gs://-/runs")
    pod = node.run(asked, STORAGE_EMULATOR_HOST=shared_emulator.url)
    objects = Objects(emulator=shared_emulator.url)
    seen = followed(store=lambda worker, path: objects.download(f"gs://-/runs/r1/worker{worker}/{path}"))
    assert seen.end().rc == 0
    (problem,) = seen.collect().problems
    assert problem.path == "(the rest)" and "bucket" in problem.why
    assert any("results did not reach gs://-/runs/r1" in notice for notice in seen.notices)
    until(lambda: pod.view().rc == 65, "its own code")


def test_pods_that_are_not_there_are_waited_for_and_then_named(node: Node, followed: Make) -> None:
    crew: Crew = followed().fleet
    with pytest.raises(Unreachable, match="worker0 of 1: no pod is there, for 0 s"):
        crew.connect(0.0)
    node.away = True
    with pytest.raises(Unreachable, match="the API server does not answer"):
        followed().fleet.connect(0.0)
