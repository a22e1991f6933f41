"""A job that the cluster takes away and starts again: each start is an attempt, which goes on from the saved work."""

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import CloudError
from orchestrator.places.google.objects import Objects
from tests.cluster.gke_fixture import HOLD, MEET, Gke
from tests.cluster.jobsets import ended, jobset, submit
from tests.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.long]
# Learns 0.5 by steps of its own. It holds at each step of `HOLDS` until `let_go`, and goes on from its checkpoint.
TRAINING = f"""
import json, os, pathlib, time
{MEET}
place = pathlib.Path(os.environ["TPUJOB_ARTIFACTS"])
kept = place / "checkpoint.json"
state = json.loads(kept.read_text()) if kept.exists() else {{"step": 0, "weight": 0.0}}
print("begins at", state["step"], flush=True)
for step in range(state["step"] + 1, 41):
    state = {{"step": step, "weight": state["weight"] + 0.1 * (0.5 - state["weight"])}}
    with (place / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({{"step": step, "loss": (0.5 - state["weight"]) ** 2}}) + "\\n")
    draft = place / ".draft"
    draft.write_text(json.dumps(state))
    draft.replace(kept)
    if step % 10 == 0 and step < 40 and os.environ.get("HOLDS") == "1":
        print("holds at", step, flush=True)
        while not pathlib.Path("/tpujob/run/go").exists():
            time.sleep(0.1)
        pathlib.Path("/tpujob/run/go").unlink()
"""


OFTEN = "from orchestrator.promise.lease import periods; periods.Timings.save_s = property(lambda self: 5.0)"


@pytest.fixture
def storage(gke: Gke) -> dict[str, str]:
    gke.change(OFTEN)
    return gke.storage()


def written(to: Gke, **keys: Any) -> str:
    source = to.directory / "src"
    source.mkdir(exist_ok=True)
    (source / "train.py").write_text(TRAINING)
    saved = {"bucket": "gs://my-bucket/runs", "on_preemption": "restart", "max_restarts": 3, "code": "src"}
    return to.write("python3 train.py", env={"HOLDS": "1"}, **{**saved, **keys})


def losses(directory: Path, worker: int) -> list[Any]:
    text = (directory / f"worker{worker}/artifacts/metrics.jsonl").read_text()
    return [(row["step"], round(row["loss"], 12)) for row in map(json.loads, text.splitlines())]


UNDISTURBED = [(step, round((0.5 * 0.9**step) ** 2, 12)) for step in range(1, 41)]


def objects(storage: dict[str, str], name: str) -> list[bytes]:
    """Return the content of an object below the prefix of the jobs, if it is there."""
    with suppress(CloudError):
        return [b"".join(Objects(emulator=storage["STORAGE_EMULATOR_HOST"]).download(f"gs://my-bucket/runs/{name}"))]
    return []


def saved_step(storage: dict[str, str], run: str) -> int | None:
    """Return the step of the newest copy in the bucket."""
    copies = [copy for text in objects(storage, f"{run}/saved/manifest.json") for copy in json.loads(text)["copies"]]
    return copies[0]["step"] if copies else None


def holding(gke: Gke, step: int, pods: int) -> list[dict[str, Any]]:
    """Return the pods once all of them hold at this step."""

    def held() -> list[dict[str, Any]]:
        found = [pod for pod in gke.pods() if pod["status"]["phase"] == "Running"]
        logs = [gke.cluster.kubectl("logs", pod["metadata"]["name"], "-n", gke.space, check=False) for pod in found]
        return [pod for pod, log in zip(found, logs, strict=True) if f"holds at {step}" in log.stdout]

    return until(held, f"{pods} pods that hold at step {step}", lambda found: len(found) == pods)


def preempted(gke: Gke, number: int) -> None:
    """Let Kueue admit a job of a higher priority, which ends once it has begun."""
    urgent = jobset(f"urgent{number}", "echo begun", "v5p-8", queue="tpu", priority="high")
    submit(gke.cluster, gke.space, urgent)
    ended(gke.cluster, gke.space, f"urgent{number}")


def test_jobs_of_two_slices_outlive_two_preemptions_and_the_loss_of_a_node(gke: Gke, storage: dict[str, str]) -> None:
    """Attached and detached, side by side: for a minute each waits until the control plane misses a pod."""
    sides = {how: replace(gke, space=gke.cluster.namespace(quota=16)) for how in ("run", "submit")}
    commands = {}
    for how, side in sides.items():
        file = written(side, name=how, gke={"priority": "low", "grace": "25s"}, pods=2, tpu={"slices": 2})
        commands[how] = side.begin(how, file, env={**storage, "TPUJOB_COLLECTOR": "off"})
    for number, step in enumerate((10, 20), 1):
        for side in sides.values():
            holding(side, step, 4)
            preempted(side, number)
    assert commands["submit"].end().returncode == 0
    runs = {each["name"]: each["run"] for each in json.loads(gke("list", "--json").stdout)}
    for how, side in sides.items():
        pods = holding(side, 30, 4)
        until(lambda how=how: saved_step(storage, runs[how]) == 30, "the copy of step 30")
        side.cluster.play("node_removed", node=pods[-1]["spec"]["nodeName"])
    commands["submit"] = gke.begin("attach", runs["submit"], env=storage)
    for how, side in sides.items():
        done = side.end(commands[how])
        assert done.returncode == 0, done.text
        directory, run = gke.directory / f"runs/{how}-{runs[how]}", runs[how]
        assert all(losses(directory, worker) == UNDISTURBED for worker in range(4))
        logs = [log.decode() for log in objects(storage, f"{run}/attempts/2/worker3.log")]
        assert logs and "begins at 10" in logs[0]
        shown = json.loads(gke("show", run, "--json").stdout)
        assert [each["state"] for each in shown["attempts"]] == [*["interrupted"] * 3, "succeeded"], shown["attempts"]
        assert "step 30" in shown["attempts"][3]["continued"]
        assert side.left() == []


def test_a_job_that_fails_by_itself_is_not_started_again(gke: Gke, storage: dict[str, str]) -> None:
    gke.change("from orchestrator.places.gke import preparation; preparation.HOLD_S = -8.0")
    again = {"bucket": "gs://my-bucket/runs", "on_preemption": "restart"}
    done = gke.run('echo begun; [ "$TPUJOB_WORKER" = 0 ] && exit 3; sleep 300', env=storage, pods=2, **again)
    assert done.returncode == 3 and "waiting whether another pod of it was taken away" in done.stderr, done.text
    assert len(json.loads(gke("show", gke.only_run()["run"], "--json").stdout)["attempts"]) == 1


def test_a_job_that_may_run_once_is_ended_by_its_pods_when_kueue_starts_it_again(
    gke: Gke, storage: dict[str, str]
) -> None:
    gke.space = gke.cluster.namespace(quota=8)
    run = gke.submit(HOLD, env=storage, pods=2, gke={"priority": "low"}, bucket="gs://my-bucket/runs")
    until(lambda: [pod for pod in gke.pods() if pod["status"]["phase"] == "Running"][1:], "its pods")
    preempted(gke, 1)
    done = gke.end(gke.begin("attach", run, env=storage))
    assert done.returncode == 71 and "the cluster started the job for the 2. time" in done.stderr, done.text
