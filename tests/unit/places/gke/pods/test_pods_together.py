"""Several pods of one job: their places, the addresses of each other, and the results of all."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.core.text.scripts import with_data
from orchestrator.errors import Unreachable
from orchestrator.places.google.objects import Objects, RunResults
from orchestrator.places.preparation.phases import POD_DATA
from orchestrator.remote.fleet.follow import WorkerState
from orchestrator.remote.fleet.port import Crew
from orchestrator.remote.ssh import agent
from tests.emulator_fixture import Emulator
from tests.pods_fixture import Node, request
from tests.unit.places.gke.pods.conftest import Followed
from tests.waiting import until

Make = Callable[..., Followed]
COORDINATOR = "tpujob-x-slice-0-0.tpujob-x"


def place(worker: int, names: Path, *, slices: int = 1, hosts: int = 2) -> dict[str, str]:
    """The variables of a pod as the manifest sets them."""
    return {
        "TPUJOB_SLICE": str(worker // hosts),
        "JOB_COMPLETION_INDEX": str(worker % hosts),
        "TPUJOB_SLICES": str(slices),
        "TPUJOB_HOSTS_PER_SLICE": str(hosts),
        "TPUJOB_POD_IP": f"127.0.1.{worker}",
        "TPUJOB_COORDINATOR_NAME": COORDINATOR,
        "TPUJOB_COORDINATOR_PORT": "23456",
        "TPUJOB_EMULATED_NAMES": str(names),
    }


def test_pods_of_two_slices_wait_for_each_others_names_and_know_their_places(
    node: Node, followed: Make, tmp_path: Path
) -> None:
    names = tmp_path / "hosts"
    script = """
    echo "$TPUJOB_WORKER of $TPUJOB_WORKERS: $TPUJOB_HOSTS, $TPUJOB_COORDINATOR"
    echo $TPUJOB_WORKER >$TPUJOB_ARTIFACTS/me
    """
    for worker in range(4):
        node.run(request(("main", script)), worker, **place(worker, names, slices=2))
    seen = followed(4)
    seen.fleet.connect(10.0)
    seen.follow()
    until(lambda: all(pod.parts for pod in node.all.values()), "the first words of all")
    assert seen.fleet.wait(0.0).log_bytes == 0
    names.write_text("".join(f"127.0.1.{i} tpujob-x-slice-{i // 2}-{i % 2}.tpujob-x\n" for i in range(4)))
    assert seen.ended().all_succeeded
    everyone = "127.0.1.0,127.0.1.1,127.0.1.2,127.0.1.3"
    for worker in range(4):
        assert seen.logs[worker].decode() == f"{worker} of 4: {everyone}, 127.0.1.0:23456\n"
    found = seen.collect()
    assert not found.problems and [(file.worker, file.path) for file in found.files] == [
        (worker, "artifacts/me") for worker in range(4)
    ]
    assert seen.result("artifacts/me", 3) == b"3\n"


def test_a_pod_that_waits_for_the_others_ends_on_sigterm(node: Node, followed: Make, tmp_path: Path) -> None:
    pod = node.run(request(("main", "echo never")), 0, **place(0, tmp_path / "none"))
    seen = followed()
    seen.follow()
    until(lambda: pod.parts, "its first words")
    pod.reason = "Preempting"
    pod.kill(signal.SIGTERM)
    end = seen.ended().workers[0]
    assert (end.state, end.why, seen.log) == (WorkerState.LOST, "Preempting", b"")
    until(lambda: pod.view().rc == 143, "its own code")


def test_variables_that_contradict_each_other_are_said(node: Node, followed: Make, tmp_path: Path) -> None:
    node.run(request(("main", "echo never")), 0, **{**place(0, tmp_path / "none"), "JOB_COMPLETION_INDEX": "7"})
    end = followed().end()
    assert (end.state, end.why) == (WorkerState.LOST, "failed")
    assert end.detail == "ValueError: this is pod 7 of 2: its variables contradict each other"


def test_one_of_two_pods_fails_and_the_other_is_waited_for(node: Node, followed: Make, tmp_path: Path) -> None:
    names = tmp_path / "hosts"
    names.write_text("".join(f"127.0.1.{i} tpujob-x-slice-0-{i}.tpujob-x\n" for i in range(2)))
    script = '[ $TPUJOB_WORKER = 0 ] || exit 5; until [ -e "$TPUJOB_ARTIFACTS/../go" ]; do sleep 0.05; done'
    for worker in range(2):
        node.run(request(("main", script)), worker, **place(worker, names))
    seen = followed(2)
    seen.follow()
    until(lambda: seen.fleet.wait(1.0).workers[1].final, "the end of the second")
    seen.fleet.stop(0.1)  # nothing can be sent; it only waits
    assert not seen.fleet.wait(0.0).workers[0].final
    until((first := node.pod(0).place / "run" / "r1-1").is_dir, "the beginning of the first")
    (first / "go").touch()
    status = seen.ended()
    assert [worker.rc for worker in status.workers] == [0, 5] and status.first_failed == status.workers[1]


def test_results_of_any_size_go_through_the_bucket(
    node: Node, followed: Make, tmp_path: Path, shared_emulator: Emulator
) -> None:
    script = "cp data/x $TPUJOB_ARTIFACTS/small; cd $TPUJOB_ARTIFACTS; head -c 3000000 /dev/urandom >big; sha256sum big"
    (tmp_path / "x").write_text("small\n")
    Objects(emulator=shared_emulator.url).upload("gs://all-sizes/data/x", tmp_path / "x")
    fetching = with_data("", {"./data": "gs://all-sizes/data"}, agent.command("data"), POD_DATA)
    node.run(
        request(("setup", fetching), ("main", script), inline_bytes=1000, bucket="gs://all-sizes/runs"),
        STORAGE_EMULATOR_HOST=shared_emulator.url,
    )
    objects = Objects(emulator=shared_emulator.url)
    seen = followed(store=RunResults(objects, "gs://all-sizes/runs/r1"))
    assert seen.end().rc == 0
    found = seen.collect()
    assert not found.problems and {file.path for file in found.files} == {"artifacts/big", "artifacts/small"}
    assert f"{found.files[0].sha256}  big\n".encode() == seen.log
    names = [each.name for each in objects.list("gs://all-sizes/runs/r1/")]
    assert names == ["runs/r1/worker0/artifacts/big", "runs/r1/worker0/artifacts/small"]
    objects.delete("gs://all-sizes/runs/r1/worker0/artifacts/big")
    again = followed(store=RunResults(objects, "gs://all-sizes/runs/r1"))
    again.place = tmp_path / "again"
    again.place.mkdir()
    again.end()
    found = again.collect()
    assert [str(problem) for problem in found.waiting] == [
        "worker0: artifacts/big: it is in the bucket of the job: gs://all-sizes/runs/r1/worker0/artifacts/big does not exist"
    ]
    assert [file.path for file in found.files] == ["artifacts/small"]


def test_a_bucket_that_takes_nothing_is_said_and_has_a_code_of_its_own(
    node: Node, followed: Make, shared_emulator: Emulator
) -> None:
    script = "cd $TPUJOB_ARTIFACTS; head -c 100000 /dev/urandom >big; echo small >small"
    asked = request(("main", script), inline_bytes=1000, bucket="gs://-/runs")
    pod = node.run(asked, STORAGE_EMULATOR_HOST=shared_emulator.url)
    seen = followed()
    assert seen.end().rc == 0
    found = seen.collect()
    assert [file.path for file in found.files] == ["artifacts/small"]
    (problem,) = found.problems
    assert problem.path == "artifacts/big" and "it did not reach the bucket" in problem.why
    until(lambda: pod.view().rc == 65, "its own code")


def test_pods_that_are_not_there_are_waited_for_and_then_named(node: Node, followed: Make) -> None:
    crew: Crew = followed().fleet
    with pytest.raises(Unreachable, match="worker0 of 1: no pod is there, for 0 s"):
        crew.connect(0.0)
    node.away = True
    with pytest.raises(Unreachable, match="the API server does not answer"):
        followed().fleet.connect(0.0)
