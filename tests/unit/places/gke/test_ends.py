"""A job on a cluster: its code as one archive, also in a bucket, and its nodes, watched until they are gone."""

import json
import os
import tarfile
from collections.abc import Iterator
from contextlib import closing, nullcontext
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from orchestrator import errors
from orchestrator.api.jobs.elsewhere import look_for_run
from orchestrator.api.jobs.ending import cancel_run, collect
from orchestrator.api.results.pages import of_another_process
from orchestrator.api.session.reporter import Reporter
from orchestrator.api.session.session import Session
from orchestrator.api.slices.status import left_by_ended
from orchestrator.errors import DeadlineExceeded, PayloadFailed, Preempted, SliceLost, TpujobError, UserError
from orchestrator.hosts.fleet.crew import FleetStatus
from orchestrator.hosts.fleet.follow import WorkerState, WorkerStatus
from orchestrator.hosts.shipping import tree
from orchestrator.hosts.shipping.shipment import make_shipment
from orchestrator.job import job_spec
from orchestrator.job.cluster import ClusterWish
from orchestrator.places.gke import by_hand
from orchestrator.places.gke.api import clusters
from orchestrator.places.gke.api.kube_api import path_of
from orchestrator.places.gke.objects.nodes import NodeView
from orchestrator.places.gke.preparation import CodeArchive, pack_code
from orchestrator.places.gke.stay import ClusterStay, Seen, verdict
from orchestrator.places.gke.watch import WATCH_S, GetNodes, report_nodes
from orchestrator.places.google.objects import Objects
from orchestrator.places.preparation import records as runs
from orchestrator.promise.effects.base import Effect, Now, Report, Sleep
from orchestrator.promise.lease.changes import AttemptEnded, Began, Intent, Leased, NodesUsed
from orchestrator.promise.lease.lease import Purpose, SliceName
from orchestrator.promise.lease.run_and_attempt import AttemptState, RunRecord
from orchestrator.settings import GKE, Target
from orchestrator.vm.pod.start import unpack
from tests.emulator.fixture import Emulator
from tests.fakes.leases import lease_and_request
from tests.simulation.model.bench import driven
from tests.unit.places.gke.api.store import Store, jobset, running

NODES = ("gke-a", "gke-b")
WORK = "work"  # the directory of what a job writes beside its artifacts


class Nodes:
    """The nodes of a cluster at a time: each as long as it is there, by seconds from the beginning."""

    def __init__(self, *until_s: float) -> None:
        self.time, self.until = 0.0, dict(zip(NODES, until_s, strict=False))
        self.busy: set[str] = set()
        self.errors: list[errors.CloudError] = []
        self.told: list[str] = []

    def answer(self, effect: Effect[Any]) -> Any:
        match effect:
            case Now():
                return self.time
            case Sleep(seconds=seconds):
                self.time += seconds
            case Report(stage=stage, text=text):
                self.told.append(f"{stage} {text}")
            case GetNodes(names=names):
                if self.errors:
                    raise self.errors.pop()
                there = [name for name in names if self.time < self.until[name]]
                return tuple(NodeView(name, "pool", busy=name in self.busy) for name in there)
        return None


def test_a_run_ends_with_its_objects_and_names_the_nodes_that_stay() -> None:
    cloud, stay = Nodes(), ClusterStay(seen=Seen(NODES))
    lease, _ = lease_and_request()
    driven(stay.tell_rest(lease, watch=False), cloud.answer)
    ran = f"nodes the job ran on 2 nodes ({', '.join(NODES)}), billed until the cluster deletes them"
    assert cloud.told == [f"{ran}; `tpujob status` shows those left, `--watch-nodes` waits"] and cloud.time == 0.0
    for without in (ClusterStay().tell_rest(lease, watch=False), report_nodes("a-cluster", ())):
        driven(without, Mock(side_effect=AssertionError))


@pytest.mark.parametrize(("until_s", "more", "number", "line"), [
    ((95, 200), {}, 0, "2 nodes of pool pool (gke-a, gke-b): billed until the cluster deletes them"),
    ((95, 200), {}, 1, "all 2 nodes are gone after 3 m 25 s"),
    ((95, 1e9), {}, -1, "warning nodes STILL THERE, and billed: 1 node of pool pool (gke-b); a minimum size"),
    ((95, 1e9), {"busy": {"gke-b"}}, -1,
     "the node is gone after 1 m 45 s; 1 node of pool pool (gke-b), 1 in use by others"),
    ((0, 0), {"errors": [errors.AuthError("nodes is forbidden")]}, 0,
     "you may not read nodes, so that they are gone is not known: nodes is forbidden"),
    ((0, 0), {"errors": [errors.CloudUnavailable("503")]}, 0, "all 2 nodes are gone after"),
])  # fmt: skip
def test_nodes_are_watched_until_they_are_gone_or_stay(
    until_s: tuple[float, float], more: dict[str, Any], number: int, line: str
) -> None:
    cloud = Nodes(*until_s)
    vars(cloud).update(more)
    driven(report_nodes("a-cluster", NODES), cloud.answer)
    assert cloud.time <= WATCH_S + 60
    told = [text.removeprefix("nodes ") for text in cloud.told if "still exist" not in text]
    assert told[number].startswith(line)


LEASE = lease_and_request().lease


def ended(index: int, rc: int | None = None, why: str = "", detail: str = "", **more: Any) -> WorkerStatus:
    state = WorkerState.LOST if rc is None else WorkerState.EXITED
    return WorkerStatus(index, state, 100.0 + index, 0, rc, why=why, detail=detail, **more)


OOM = "the job on worker0 was killed: it took more memory than there is (OOMKilled)"
NODE = LEASE.name.node


LATE, TOO_LONG = ended(0, 124, "deadline", stopped=True), "the job reached limits.max_duration and was stopped"


@pytest.mark.parametrize(("workers", "kind", "code", "words"), [
    ([LATE], DeadlineExceeded, 124, TOO_LONG),
    ([ended(0, 3, "setup")], PayloadFailed, 3, "the setup failed on worker0 with code 3"),
    ([ended(0, why="stalled")], SliceLost, 71, "the job printed nothing for `limits.stall` and was stopped"),
    ([ended(0, why="OOMKilled")], PayloadFailed, 63, OOM),
    ([ended(0, why="failed", detail="no room")], SliceLost, 71, "worker0 could not begin the job: no room"),
    ([ended(0, why="gone", detail="its pod was deleted")], SliceLost, 71, f"worker0 of {NODE} was lost: its pod was deleted"),
    ([ended(0, why="Evicted", detail="low on disk")], Preempted, 71, f"worker0 of {NODE} was lost: Evicted: low on disk"),
    # a pod that was taken away explains the failures of the others
    ([ended(0, 1), ended(1, why="Preempting")], Preempted, 71, f"worker1 of {NODE} was lost: Preempting"),
    *(([ended(0, 1), ended(1, why=why)], SliceLost, 71, f"worker1 of {NODE} was lost: {why}")
      for why in ("OutOfcpu", "OutOfgoogle.com/tpu", "TopologyAffinityError", "UnexpectedAdmissionError")),
    # one that the cluster stops beside one that has ended is not the cause, however early it is known
    *(([ended(0, why=why), replace(LATE, index=1)], DeadlineExceeded, 124, TOO_LONG) for why in ("stopped", "gone")),
    *(([ended(0, why="stopped"), ended(1, why=why, detail="no such file")], SliceLost, 71,
       f"worker1 could not begin the job: {why}: no such file") for why in ("ContainerCannotRun", "StartError")),
])  # fmt: skip
def test_each_end_has_its_words_and_its_code(
    workers: list[WorkerStatus], kind: type[TpujobError], code: int, words: str
) -> None:
    error = verdict(LEASE, FleetStatus(tuple(workers)), "r1")
    assert type(error) is kind and (error.exit_code, error.message) == (code, words)
    assert ("could not begin" in words) is (isinstance(error, SliceLost) and error.reason == "not-begun")


@pytest.mark.parametrize("workers", [
    [ended(0, 5)], [ended(0, 124)], [ended(0, why="lost")], [ended(0, 1), ended(1, why="gone")],
    [ended(0, why="stopped"), ended(1, 7)], [ended(0, why="gone"), ended(1, 7)],
])  # fmt: skip
def test_the_jobs_own_code_is_left_to_the_job(workers: list[WorkerStatus]) -> None:
    assert verdict(LEASE, FleetStatus(tuple(workers)), "r1") is None


def test_a_pod_that_the_cluster_stopped_is_waited_for_by_no_notice_of_a_vm() -> None:
    """A spot slice publishes it after its worker has said that it was stopped; a pod that is gone says nothing."""
    assert not FleetStatus((ended(0, why="stopped", stopped=True), ended(1, 1))).any_stopped
    assert FleetStatus((LATE, ended(1, 1))).any_stopped


def test_the_commands_name_namespace_lease_and_context() -> None:
    name = SliceName("my ctx@https://127.0.0.1:1", "team", "tpujob-abc123-0123456789", queued=True)
    every = "jobsets,jobs,pods,configmaps,secrets -n team -l tpujob-lease-id=0123456789 --context 'my ctx'"
    assert by_hand.look_commands(name, "0123456789") == (f"kubectl get {every}",)
    assert by_hand.delete_command(name, "0123456789") == f"kubectl delete {every}", "also without its JobSet"
    assert by_hand.delete_command(name) == f"kubectl delete {every}", "also where only its leavings were found"
    named = replace(name, project="projects/p/locations/us-central1/clusters/one")
    assert "--context" not in by_hand.delete_command(named), "it is that of your own"


def files(directory: Path) -> Path:
    code = directory / "code"
    (code / "package" / "empty").mkdir(parents=True)
    (code / "train.py").write_text("print(1)\n")
    (code / "run.sh").write_text("#!/bin/sh\n")
    (code / "run.sh").chmod(0o755)
    (code / "package" / "__init__.py").write_bytes(b"")
    (code / "package" / "same.py").write_text("print(1)\n")
    (code / "package" / "link.py").symlink_to("../train.py")
    return code


def packed(directory: Path, name: str = "code.tar.gz") -> CodeArchive:
    surveyed = tree.survey({".": tree.Source(directory / "code", gitignore=True)})
    return pack_code(make_shipment(surveyed, directory / "store"), directory / name)


def test_the_same_files_are_the_same_bytes_which_tell_nothing_of_this_machine(tmp_path: Path) -> None:
    code, first = files(tmp_path), packed(tmp_path, "a")
    os.utime(code / "train.py", (1, 1))
    (code / "run.sh").chmod(0o700)
    second = packed(tmp_path, "b")
    assert first.path.read_bytes() == second.path.read_bytes()
    assert first.path.read_bytes()[4:8] == bytes(4), "no time in the head of gzip"
    with tarfile.open(first.path) as archive:
        told = {(each.uid, each.gid, each.uname, each.gname, each.mtime) for each in archive.getmembers()}
    assert told == {(0, 0, "", "", 0)}
    assert (first.sha256, first.size_bytes) == (second.sha256, len(second.path.read_bytes()))
    (code / "train.py").write_text("print(2)\n")
    assert packed(tmp_path, "c").sha256 != first.sha256


def test_the_pods_unpack_what_was_packed(tmp_path: Path) -> None:
    code, archive, work = files(tmp_path), packed(tmp_path), tmp_path / "work"
    unpack(str(tmp_path), {"code_sha256": archive.sha256}, str(work), None)  # type: ignore[arg-type]
    assert {path.relative_to(work) for path in work.rglob("*")} == {path.relative_to(code) for path in code.rglob("*")}
    assert (work / "train.py").read_text() == (work / "package" / "same.py").read_text() == "print(1)\n"
    assert (work / "package" / "link.py").readlink() == Path("../train.py")
    assert (work / "package" / "__init__.py").read_bytes() == b""
    assert os.access(work / "run.sh", os.X_OK) and not os.access(work / "train.py", os.X_OK)


JOB = "on: gke\nname: hello\ncommand: ls\ngke: {image: 'i:1'}\nbucket: gs://my-bucket/runs\n"


@pytest.fixture
def session(tmp_path: Path, shared_emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", shared_emulator.url)
    monkeypatch.chdir(tmp_path)
    target = Target("emulated", "emulated")
    with closing(Session(target, tmp_path, reporter=Reporter(), after_end=of_another_process)) as made:
        yield made


@pytest.fixture
def objects(shared_emulator: Emulator) -> Objects:
    return Objects(emulator=shared_emulator.url)


def begun(session: Session, objects: Objects, directory: Path) -> RunRecord:
    """A run whose code was uploaded, and whose process is gone."""
    spec = job_spec.load(JOB, path="job.yaml")
    record, attempt = runs.new_run(spec, directory / "job.yaml", GKE, directory / "runs", session.now(GKE))
    url = f"gs://my-bucket/runs/{record.id}/code.tar.gz"
    record = replace(record, spec=record.spec.having(cluster={"phases": ["main"], "pods": 1, "code_object": url}))
    (directory / "code").write_bytes(b"packed")
    objects.upload(url, directory / "code")
    session.ledger.record(Began(record, attempt))
    return record


def stored(objects: Objects, record: RunRecord) -> list[str]:
    return [each.name for each in objects.list(f"gs://my-bucket/runs/{record.id}/")]


def test_the_code_of_a_run_without_a_process_is_deleted(session: Session, objects: Objects, tmp_path: Path) -> None:
    killed = begun(session, objects, tmp_path)
    assert stored(objects, killed)
    session.recover()
    assert session.ledger.run(killed.id)[1].state.ended and stored(objects, killed) == []
    record = begun(session, objects, tmp_path)
    assert session.locks.lock(f"{record.id}-1"), "so that the run counts as alive"
    cancel_run(session, *session.ledger.run(record.id))
    assert stored(objects, record) == []


@pytest.mark.parametrize(("pods", "said", "states"), [
    ((), {}, ("creating", "pending")), ((running(0), running(1)), {}, ("ready", "running")),
    ((), {"attempt": "other-1"}, None), ((), {"attempt": None}, None),
])  # fmt: skip
def test_a_run_of_another_machine_is_taken_over_as_its_objects_say(
    session: Session, monkeypatch: pytest.MonkeyPatch, pods: Any, said: dict[str, Any], states: tuple[str, str] | None
) -> None:
    store, (run, attempt) = Store(), runs.new_run(job_spec.load(JOB, path="job.yaml"), Path("j"), GKE, Path(), 1.0)
    labels = {"tpujob-owner": session.owner, "tpujob-run": run.id, "tpujob-name": "hello"}
    made = jobset(labels={**jobset()["metadata"]["labels"], **labels})
    request = json.dumps({"record": {**runs.record_of(run, attempt), **said}})
    config = {"metadata": {"name": made["metadata"]["name"]}, "data": {"request.json": request}}
    for kind, each in (("jobsets", made), ("configmaps", config), *(("pods", pod) for pod in pods)):
        store.put(path_of(kind, "team", each["metadata"]["name"]), each)
    monkeypatch.setattr(clusters, "identity", lambda *which: "kind@https://k8s.test")
    monkeypatch.setattr(clusters, "open_api", lambda *which: store.api())
    session.target = replace(session.target, gke=ClusterWish(namespace="team"))
    with nullcontext() if states else pytest.raises(UserError, match="has no record of run"):
        look_for_run(session, "hello")
    (lease,) = session.ledger.open_leases()
    assert (lease.purpose, lease.runs_detached, lease.run) == (Purpose.ELSEWHERE, True, run.id)
    if states:
        found, attempt = session.ledger.run(run.id)
        assert (lease.state, attempt.state, attempt.lease_id) == (*states, lease.id)
        assert (found.name, found.spec.bucket) == ("hello", run.spec.bucket)


@pytest.mark.parametrize(("nodes", "hours", "told"), [
    ([("gke-a", False), ("gke-b", True)], 1, ["ended runs have left 1 node (gke-a), billed until the cluster deletes them"]),
    ([("gke-b", True), ("gke-c", False)], 1, []), ([("gke-a", False)], 25, []),
    (errors.AuthError("no nodes for you"), 1, ["whether the nodes of ended runs are gone is not known: no nodes for you"]),
])  # fmt: skip
def test_status_names_the_nodes_of_ended_runs_until_they_are_gone_or_others_use_them(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: Any, hours: int, told: list[str]
) -> None:
    record, attempt = runs.new_run(job_spec.load(JOB, path="j"), tmp_path / "j", GKE, tmp_path, session.now(GKE))
    at, lease = session.now(GKE) - hours * 3600, replace(lease_and_request().lease, cloud=GKE, run=record.id)
    made = Began(record, attempt), Intent(lease), Leased(attempt.id, at, lease.id)
    session.ledger.record(*made, *(NodesUsed(attempt.id, at, each) for each in ("gke-a", "gke-b")))

    def asked(project: str, names: tuple[str, ...]) -> tuple[NodeView, ...]:
        if isinstance(nodes, Exception):
            raise nodes
        return tuple(NodeView(name, busy=busy) for name, busy in nodes if name in names)

    monkeypatch.setattr(Session, "cloud", lambda *_: Mock(nodes=asked))
    assert list(left_by_ended(session)) == [], "it has not ended"
    session.ledger.record(AttemptEnded.by(attempt.id, at, AttemptState.SUCCEEDED, None))
    assert list(left_by_ended(session)) == told


def test_collect_brings_what_is_beside_the_artifacts(session: Session, objects: Objects, tmp_path: Path) -> None:
    record, place = begun(session, objects, tmp_path), tmp_path / "there"
    session.recover()
    sizes = {"artifacts/model": 1, "work/a.log": 2, "work/b.log": 3, "work/c": 4}
    rows: list[dict[str, Any]] = [{"path": "work/lost.log", "why": "it did not reach the bucket", "beside": True}]
    for path, size_bytes in sizes.items():
        content, is_beside = bytes(size_bytes), path.startswith("work/")
        (tmp_path / "x").write_bytes(content)
        objects.upload(f"gs://my-bucket/runs/{record.id}/worker0/{path}", tmp_path / "x")
        row = {"path": path, "size_bytes": size_bytes, "sha256": sha256(content).hexdigest(), "beside": is_beside}
        rows.append(row)
    (tmp_path / "x").write_text(json.dumps({"attempt": f"{record.id}-1", "rows": rows}))
    objects.upload(f"gs://my-bucket/runs/{record.id}/worker0/index.json", tmp_path / "x")

    def came(where: Path) -> set[str]:
        return {path.relative_to(where).as_posix() for path in where.glob("worker0/**/*") if path.is_file()}

    collect(session, record.id, work="*.log", to=place)
    assert came(place) == {f"worker0/{WORK}/a.log", f"worker0/{WORK}/b.log"}
    assert came(Path(record.directory)) == {"worker0/artifacts/model", f"worker0/{WORK}/c"}
    with pytest.raises(UserError, match=r"--to: .* has files that are not known as this run's"):
        collect(session, record.id, work="*", to=Path(record.directory))
    collect(session, record.id, work="*.log")
    assert len(came(Path(record.directory))) == 4
