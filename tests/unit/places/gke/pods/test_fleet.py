"""The program of a pod as a real process, the fleet that follows its log, and a real training in two pods."""

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.hosts.fleet.follow import WorkerState
from tests.fakes.pods import Leap, Node, archive_of, request
from tests.unit.places.gke.pods.conftest import Followed
from tests.waiting import until

Make = Callable[..., Followed]


def up(followed: Make) -> Followed:
    """Follow a job that says `up`, and return once it did."""
    seen = followed()
    seen.follow()
    until(lambda: seen.log == b"up\n", "the job")
    return seen


def test_a_job_in_a_pod_has_its_log_its_figures_its_code_and_its_results(node: Node, followed: Make) -> None:
    archive = archive_of(("a/hello.txt", b"hello\n", ""))
    main = """
    cat a/hello.txt
    echo "$TPUJOB_RUN $TPUJOB_ATTEMPT $TPUJOB_WORKER/$TPUJOB_WORKERS $TPU_NAME $PJRT_DEVICE $TPUJOB_COORDINATOR"
    echo '{"step": 1}' >>"$TPUJOB_ARTIFACTS/metrics.jsonl"
    echo made >a/made.txt; echo left >a/left.dat
    """
    asked = request(("setup", "echo setting up"), ("main", main), archive=archive, artifacts=["a/*.txt"])
    node.run(asked, archive=archive, TPUJOB_POD_IP="10.1.2.3", TPUJOB_COORDINATOR_PORT="20001")
    seen = followed()
    assert seen.end("setup").rc == 0 and seen.log == b"setting up\n"
    seen.logs.clear()
    end = seen.end("main")
    assert (end.state, end.rc, end.stopped, end.why) == (WorkerState.EXITED, 0, False, "")
    assert seen.log == b"hello\nr1 r1-1 0/1 tpujob-x TPU 10.1.2.3:20001\n" and end.log_bytes == len(seen.log)
    assert bytes(seen.metrics) == b'{"step": 1}\n'
    found = seen.collect()
    assert not found.problems
    assert {file.path for file in found.files} == {"artifacts/metrics.jsonl", "work/a/hello.txt", "work/a/made.txt"}
    assert seen.result("work/a/made.txt") == b"made\n"


def test_the_log_here_is_the_log_there_byte_for_byte(node: Node, followed: Make) -> None:
    """Other lines than these: `test_stream`."""
    script = r"printf 'half a'; sleep 1.3; echo ' line'; printf '::tpujob|x|\ndos\r\n\0\xff\n'; printf '%040000d' 0"
    node.run(request(("main", script)))
    seen = followed()
    assert seen.end().rc == 0 and seen.notices == []
    assert seen.log == b"half a line\n::tpujob|x|\ndos\r\n\0\xff\n" + b"0" * 40_000


def test_what_a_pod_leaves_out_of_its_log_is_a_gap_of_that_size_also_after_a_cut(node: Node, followed: Make) -> None:
    node.cuts = [9_000]
    pod = node.run(request(("main", "echo first; yes | head -c 20000000; echo last"), max_log=1_000_000))
    seen = followed()
    end, log = seen.end(), pod.place / "run" / "r1-1" / "main" / "log"
    assert end.rc == 0 and end.log_bytes == log.stat().st_size == 20_000_011 and seen.notices == []
    assert log.stat().st_blocks * 512 < 1_100_000 and seen.log.endswith(b"y\nlast\n")
    assert len(seen.log) + seen.left_out_bytes == end.log_bytes and seen.left_out_bytes > 15_000_000


def test_a_job_that_prints_nothing_for_too_long_is_stopped(node: Node, followed: Make) -> None:
    node.run(request(("main", "echo once; sleep 1000"), stall_s=1.0))
    end = followed().end()
    assert (end.state, end.why) == (WorkerState.LOST, "stalled")


@pytest.mark.parametrize(("reason", "why"), [
    ("Evicted", "Evicted"), ("", "stopped"), ("DeadlineExceeded", "deadline"),
    pytest.param(None, "deadline", id="the pod itself keeps the time limit"),
])  # fmt: skip
def test_a_job_is_stopped_with_grace_and_still_sends_its_results(
    node: Node, followed: Make, tmp_path: Path, reason: str | None, why: str
) -> None:
    script = "trap 'echo saving; echo 7 >$TPUJOB_ARTIFACTS/step; exit 0' TERM; echo up; while true; do sleep 0.1; done"
    leap = Leap(tmp_path / "clock", to_s=3541.0)  # of 3600 s, the last 60 s are for the end
    pod = node.run(request(("main", script), max_duration_s=3600.0), PYTHONPATH=leap.path)
    seen = up(followed)
    if reason is None:
        leap.now()
    else:
        pod.reason = reason
        pod.kill(signal.SIGTERM)
    end = seen.ended().workers[0]
    deadline = (WorkerState.EXITED, 124, True)
    assert end.why == why
    assert (end.state, end.rc, end.stopped) == (
        deadline if why == "deadline" else (WorkerState.LOST, None, why == "stopped")
    )
    assert ("its pod was deleted" in end.detail) is (why == "stopped")
    assert not seen.collect().problems and seen.result("artifacts/step") == b"7\n"
    assert seen.log.startswith(b"up\n") and seen.log.endswith(b"saving\n")
    until(lambda: pod.view().rc == (124 if reason is None else 143), "the pod's own code")


def test_a_pod_that_is_killed_is_lost_and_leaves_no_process(node: Node, followed: Make) -> None:
    pod = node.run(request(("main", "echo $$; echo x >$TPUJOB_ARTIFACTS/x; sleep 1000")))
    seen = followed()
    seen.follow()
    until(lambda: seen.log, "the job")
    pod.reason = "OOMKilled"
    pod.kill()
    end = seen.ended().workers[0]
    assert (end.state, end.rc, end.why) == (WorkerState.LOST, None, "OOMKilled")
    exited = pod.place / "run" / "r1-1" / "main" / "exit.json"
    until(exited.exists, "the end of what the pod had started")
    note = json.loads((pod.place / "note").read_text())
    assert (note["phase"], note["rc"], note["why"]) == ("main", None, None)
    (problem,) = seen.collect().problems
    assert str(problem) == "worker0: (the rest): the pod ended before it had sent its results"


def test_an_api_server_that_is_away_is_no_end_and_a_clock_that_goes_back_meanwhile_hides_neither_end_nor_results(
    node: Node, followed: Make
) -> None:
    """A node leaves out all lines that are older than the time that is asked for."""
    pod = node.pod()
    pod.clock = lambda: 1_800_000_000.0
    node.run(request(("main", "echo up; until [ -e go ]; do sleep 0.05; done; echo went; cp $0 $TPUJOB_ARTIFACTS/it")))
    seen = up(followed)
    pod.clock, node.away = lambda: 1_700_000_000.0, True
    node.streams[-1].close()
    until(lambda: seen.fleet.wait(0.2).workers[0].state is WorkerState.UNREACHABLE, "the notice of it")
    (pod.place / "run" / "r1-1" / "work" / "go").touch()
    node.away = False
    assert seen.ended().workers[0].rc == 0 and seen.log.startswith(b"up\n")
    assert [file.path for file in seen.collect().files] == ["artifacts/it"]


def test_what_is_too_large_for_the_log_is_left_out_by_name_and_once_if_it_was_promised(
    node: Node, followed: Make
) -> None:
    script = (
        "cd $TPUJOB_ARTIFACTS; head -c 200000 /dev/urandom >big; echo small >small; mkfifo pipe;"
        " echo away >../away; ln -s $PWD/../away out;"
        " echo odd >$'o\\td\\xffd'; echo 1 >Model; echo 2 >model;"
        """ echo '{"schema": 1, "files": [{"path": "big", "size_bytes": 200000, "sha256": "x"}]}' >manifest.json"""
    )
    pod = node.run(request(("main", script), inline_bytes=100_000))
    seen = followed()
    assert seen.end().rc == 0
    found = seen.collect()
    came = {file.path: seen.result(file.place or file.path).decode() for file in found.files}
    assert len(found.problems) == 1 and came.pop("artifacts/manifest.json")
    odd = {"artifacts/out": "away\n", "artifacts/o\td\udcffd": "odd\n"}
    assert came == {"artifacts/Model": "1\n", "artifacts/model": "2\n", "artifacts/small": "small\n", **odd}
    assert [(each.path, each.why) for each in found.refused] == [
        ("artifacts/big", "too large for the log of a pod; `bucket:` in the job takes results of any size")
    ]
    assert [(each.path, each.why) for each in found.notes] == [("artifacts/pipe", "not a regular file")]
    until(lambda: pod.closed, "the end of the pod")
    assert json.loads(pod.view().note)["files"] == 6
