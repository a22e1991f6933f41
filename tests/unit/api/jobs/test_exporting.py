"""A job as the objects of a cluster, without one: what is said of it, what is refused, and that its pods can run them."""

import base64
import io
import json
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

import tpujob
from orchestrator.api.jobs.planning import Export, JobRequest, exported
from orchestrator.api.session.events import Event, Notice
from orchestrator.api.session.reporter import Reporter
from orchestrator.api.session.session import Session
from orchestrator.errors import JobSpecError, UserError
from orchestrator.job import job_spec
from orchestrator.places.gke.objects.manifest import MAX_BYTES, documents
from orchestrator.places.gke.preparation import Prepared, prepare
from tests.unit.job.refused import refused
from tests.waiting import ran

JOB = "on: gke\nname: hello\ntpu: {accelerator: v5p-16}\ncommand: echo hello $GREETING\ngke: {image: 'i:1'}\n"
JOB += "tpu_metrics: false\n"


class World:
    """A directory of job files, and the settings of a user."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.events: list[Event] = []

    def write(self, text: str, name: str = "job.yaml") -> Path:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def export(self, text: str, **asked: Any) -> Export:
        session = Session.open(reporter=Reporter(self.events.append))
        try:
            return exported(session, JobRequest(file=self.write(text)), **asked)
        finally:
            session.close()

    def prepare(self, text: str, stack: ExitStack, **names: str) -> Prepared:
        session = Session.open()
        stack.callback(session.close)
        spec, path = job_spec.load(text, path="job.yaml"), self.write(text)
        ids = {"run": "abcdefghjk", "lease_id": "0123456789", **names}
        return prepare(session, spec, path, env=dict(spec.env), stack=stack, **ids)

    @property
    def notices(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Notice)]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    for name in [each for each in os.environ if each.startswith(("TPUJOB_", "XDG_", "CLOUDSDK_", "GOOGLE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TPUJOB_STATE_DIR", str(tmp_path / "state"))
    return World(tmp_path / "jobs")


def kinds(found: Export) -> list[str]:
    return [str(each["kind"]) for each in found.documents]


def request_of(found: Export | tuple[dict[str, Any], ...]) -> dict[str, Any]:
    made = found.documents if isinstance(found, Export) else found
    (config_map,) = [each for each in made if each["kind"] == "ConfigMap"]
    return dict(json.loads(config_map["data"]["request.json"]))


def test_an_export_is_the_objects_of_a_run(world: World) -> None:
    found = world.export(JOB)
    assert kinds(found) == ["JobSet", "ConfigMap"]
    assert list(yaml.safe_load_all(str(found))) == list(found.documents)
    jobset, config_map = found.documents
    assert jobset["metadata"]["name"] == config_map["metadata"]["name"]
    assert jobset["metadata"]["labels"]["tpujob-run"] == found.run == request_of(found)["run"]
    assert request_of(found)["env"] == {"TPU_NAME": jobset["metadata"]["name"], "TPUJOB_TOPOLOGY": "2x2x2"}
    (phase,) = request_of(found)["phases"]
    assert (phase["name"], phase["script"]) == ("main", "echo hello $GREETING\n")


def test_each_export_has_new_names(world: World) -> None:
    first, second = world.export(JOB), world.export(JOB)
    assert first.run != second.run
    assert first.documents[0]["metadata"]["name"] != second.documents[0]["metadata"]["name"]


def test_the_same_ids_give_the_same_bytes(world: World) -> None:
    world.write("print(1)\n", "src/train.py")
    text = JOB + "code: src\nsetup: pip list\n"
    with ExitStack() as stack:
        first = json.dumps(world.prepare(text, stack).documents())
        second = json.dumps(world.prepare(text, stack).documents())
        assert first == second
        assert json.dumps(world.prepare(text, stack, run="kkkkkkkkkk").documents()) != first


def test_nothing_is_left_in_the_ledger_and_nothing_is_asked(world: World) -> None:
    world.export(JOB)
    session = Session.open()
    assert list(session.ledger.runs()) == [] and session.ledger.open_leases() == []
    session.close()


def test_what_the_settings_say_of_the_cluster_counts(world: World) -> None:
    world.write("gke: {image: 'shared:1', queue: tpu, namespace: team-a}\n", "../home/.config/tpujob/settings.yaml")
    (jobset, _) = world.export("on: gke\ncommand: ls\ngke: {namespace: mine}\n").documents
    assert jobset["metadata"]["namespace"] == "mine"
    assert jobset["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "tpu"
    pod = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == "shared:1"


def test_options_outrank_the_file(world: World) -> None:
    (jobset, _) = world.export(JOB, image="other:2", namespace="n", queue="q").documents
    assert jobset["metadata"]["namespace"] == "n"
    assert jobset["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "q"
    assert "other:2" in json.dumps(jobset)


def test_an_image_is_needed_and_its_place_is_named(world: World) -> None:
    (problem,) = refused(world.export, "on: gke\ncommand: ls\ngke:\n  queue: tpu\n")
    assert problem.startswith(f"{world.directory}/job.yaml:3: gke.image: is missing: no image is built; ")


def test_a_job_for_a_slice_is_exported_without_what_is_only_of_vms(world: World) -> None:
    text = "command: ls\naccess: {via: iap}\ntpu:\n  accelerator: v5p-8\n  zone: us-east5\n  spot: true\n"
    found = world.export(text, image="i:1")
    assert kinds(found) == ["JobSet", "ConfigMap"]
    assert "cloud.google.com/gke-spot" in json.dumps(found.documents[0])
    assert world.notices == [
        "access has no use on a cluster, and is left out",
        "tpu.zone has no use on a cluster, and is left out",
    ]


@pytest.mark.parametrize(("text", "line"), [
    ("ports: 80\n", ":2: ports: is about VMs"),
    ("tpu: {accelerator: v2-8}\n", ":2: tpu.accelerator: GKE has no v2-8"),
    ("tpu: [{accelerator: v6e-8, zone: us-east5}, {accelerator: v5p-8}]\n", ":2: tpu: a cluster gets one request"),
    ("limits: {max_cost: 3}\n", ":2: limits.max_cost: cannot be kept"),
])  # fmt: skip
def test_what_a_cluster_cannot_do_is_refused_by_name(world: World, text: str, line: str) -> None:
    assert any(line in problem for problem in refused(world.export, f"command: ls\n{text}", image="i:1"))


def test_a_sweep_is_not_one_job(world: World) -> None:
    with pytest.raises(UserError, match="is a sweep of 2 jobs"):
        world.export("command: echo ${params.a}\nmatrix: {a: [1, 2]}\n", image="i:1")


def test_secrets_are_printed_only_where_that_is_asked_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    text = JOB + "env: {TOKEN: 'Bearer ${env:MY_TOKEN}', GREETING: you, PLACE: '${env:HOME}/x'}\n"
    without = world.export(text)  # MY_TOKEN is not set
    assert kinds(without) == ["JobSet", "ConfigMap"]
    assert request_of(without)["env"].keys() == {"TPU_NAME", "TPUJOB_TOPOLOGY", "GREETING", "PLACE"}
    assert "secretRef" in json.dumps(without.documents[0])
    assert [line for line in without.comment if "is not here" in line and "TOKEN; `--with-secrets`" in line]
    monkeypatch.setenv("MY_TOKEN", "hush-4711")
    found = world.export(text, with_secrets=True)
    assert kinds(found) == ["JobSet", "Secret", "ConfigMap"]
    assert found.documents[1]["stringData"] == {"TOKEN": "Bearer hush-4711"}
    assert "hush-4711" not in json.dumps(found.documents[::2]) + "".join(found.comment)
    assert "hush-4711" not in str(world.export(text))


def test_the_comment_says_how_to_create_and_to_delete_the_objects(world: World) -> None:
    found = world.export(JOB)
    text = "\n".join(found.comment)
    assert f"kubectl delete jobset,configmap,secret -n default -l tpujob-run={found.run}" in text
    assert "kubectl create -f FILE" in text
    assert all(line.startswith("#") for line in str(found).partition("---\n")[0].splitlines())


def test_code_that_a_config_map_cannot_hold_needs_a_bucket(world: World) -> None:
    (world.directory / "src").mkdir(parents=True)
    (world.directory / "src" / "data.bin").write_bytes(os.urandom(MAX_BYTES))
    with pytest.raises(JobSpecError) as caught:
        world.export(JOB + "code: src\n")
    (problem,) = caught.value.problems
    assert (
        "job.yaml:7: code: what is shipped takes 1.0 MB when packed, and the ConfigMap of a job has room for "
        in problem
    )
    assert "bucket:" in (caught.value.hint or "")
    with pytest.raises(
        UserError, match=r"the code goes to gs://b-1/p/[a-z0-9]{10}/code\.tar\.gz, and an export uploads nothing"
    ):
        world.export(JOB + "code: src\nbucket: gs://b-1/p/\n")


def test_code_that_goes_to_a_bucket_is_named_in_the_request_with_its_hash(world: World) -> None:
    (world.directory / "src").mkdir(parents=True)
    (world.directory / "src" / "data.bin").write_bytes(os.urandom(MAX_BYTES))
    with ExitStack() as stack:
        made = world.prepare(JOB + "code: src\nbucket: gs://b-1/p\n", stack)
        assert made.upload is not None and made.code_object == "gs://b-1/p/abcdefghjk/code.tar.gz"
        assert made.upload.path.stat().st_size == made.upload.size_bytes > MAX_BYTES
        found = request_of(documents(made.job))
        assert (found["code_object"], found["code_sha256"]) == (made.code_object, made.upload.sha256)
        assert "code.tar.gz" not in made.documents()[1]["binaryData"]


def test_a_training_ships_the_sample_only_where_it_was_asked_for(world: World) -> None:
    found = world.export("on: gke\ntrain: {fallback: synthetic, checkpoint: false}\ngke: {image: i}\n")
    assert len(base64.b64decode(found.documents[1]["binaryData"]["code.tar.gz"])) < 200_000
    assert (
        ":2: train.fallback: what is shipped takes"
        in refused(world.export, "on: gke\ntrain: {fallback: sample, checkpoint: false}\ngke: {image: i}\n")[0]
    )


def test_the_python_api_exports_a_job(world: World) -> None:
    job = tpujob.Job(
        command="ls", on="gke", gke=tpujob.Gke(image="i:1"), tpu=tpujob.Tpu(accelerator="tpu7x-16", slices=2)
    )
    found = tpujob.Client().export(job)
    assert isinstance(found, tpujob.Export) and kinds(found) == ["JobSet", "ConfigMap"]
    assert found.documents[0]["spec"]["replicatedJobs"][0]["replicas"] == 2
    assert found.as_json() == {"apiVersion": "v1", "kind": "List", "items": list(found.documents)}
    with pytest.raises(tpujob.UserError, match="has `on: tpu`"):
        tpujob.Client().export(tpujob.Job(command="ls"))


def test_a_pod_can_run_what_the_config_map_holds(world: World, tmp_path: Path) -> None:
    world.write("print('from the code')\n", "src/hello.py")
    text = JOB.replace("echo hello $GREETING", "python3 hello.py && echo $GREETING $TPUJOB_WORKER of $TPUJOB_WORKERS")
    found = world.export(text + "code: src\nsetup: echo first\nenv: {GREETING: hi}\n")
    config_map = found.documents[1]
    inside = tmp_path / "in"
    inside.mkdir()
    for name, content in config_map["binaryData"].items():
        (inside / name).write_bytes(base64.b64decode(content))
    for name, content in config_map["data"].items():
        (inside / name).write_text(content)
    environ = {**os.environ, "TPUJOB_TERMINATION_LOG": str(tmp_path / "note"), "TPUJOB_POD_IP": "127.0.0.1"}
    command = [sys.executable, "-IS", str(inside / "agent.zip"), "pod", str(inside), str(tmp_path / "run")]
    ended = ran(command, env=environ)
    lines = [line for line in io.StringIO(ended.stdout).read().splitlines() if not line.startswith("::tpujob")]
    assert (ended.returncode, ended.stderr) == (0, "")
    assert lines == ["first", "from the code", "hi 0 of 1"]
    assert json.loads((tmp_path / "note").read_text())["rc"] == 0
