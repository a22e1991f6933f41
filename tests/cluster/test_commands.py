"""The commands of a job on a cluster, and `tpujob.Client`, on the real control plane."""

import json
import sys

import pytest

from tests.cluster.gke_fixture import HOLD, Gke
from tests.waiting import until

pytestmark = pytest.mark.cluster

RESULT = f'{HOLD}echo "{{\\"step\\": 1, \\"loss\\": 0.5}}" >>"$TPUJOB_ARTIFACTS/metrics.jsonl"\necho after\n'
IN_PYTHON = """
import sys, tpujob
result = tpujob.Client().run(tpujob.Job.load(sys.argv[1]))
print(result.state, [path.name for path in result.artifacts], result.released)
"""


def test_a_run_that_is_submitted_is_shown_attached_to_and_compared(gke: Gke) -> None:
    submitted = gke("submit", gke.write(RESULT, name="hello"))  # a process of its own collects
    run = submitted.stdout.strip()
    until(lambda: "begun" in gke("logs", run).stdout, "its log")
    assert gke.only_run()["lease"]["node"] in gke("status").stdout
    gke.let_go()
    done = gke("attach", run)
    assert done.returncode == 0 and "worker0 | after" in done.stdout and "absent (checked" in done.text, done.text
    assert gke.left() == []
    assert "begun\nafter\n" in gke("logs", run).stdout.replace("worker0 | ", "")
    shown = json.loads(gke("show", run, "--json").stdout)
    assert (shown["state"], shown["lease"]["state"]) == ("succeeded", "gone")
    assert "0.5" in gke("compare", run).stdout
    assert gke("report", run).returncode == 0
    assert run in gke("cost", "--by", "run").stdout


def test_a_run_that_is_canceled_leaves_nothing(gke: Gke) -> None:
    run = gke.submit(HOLD)
    done = gke("cancel", run)
    assert done.returncode == 0, done.text
    assert gke.left() == [] and json.loads(gke("show", run, "--json").stdout)["state"] == "canceled"


def test_what_no_pod_can_is_refused_with_the_reason(gke: Gke) -> None:
    run = gke.submit(HOLD)
    name = gke.only_run()["lease"]["node"]
    for words in (("ssh", name), ("stop", name), ("extend", run, "--by", "1h")):
        done = gke(*words)
        assert done.returncode == 64 and "cluster" in done.stderr, (words, done.text)
    done = gke("up", name, "--accelerator", "tpu7x-8")
    assert done.returncode == 64 and "GKE" in done.stderr, done.text
    assert gke("down", name).returncode == 0 and gke.left() == []


def test_a_sweep_submits_all_and_kueue_runs_as_many_as_there_is_quota_for(gke: Gke) -> None:
    gke.space = gke.cluster.namespace(quota=4)
    job = gke.write(f"{HOLD}echo lr $LR", env={"LR": "${params.lr}"}, matrix={"lr": [1, 2, 3]}, parallel=3)
    command = gke.begin("run", job)
    command.until_true(lambda: len(gke.jobsets()) == 3, "all three JobSets")
    command.until_true(gke.pods, "the pod of one")
    waiting = [each for each in gke.jobsets() if each["spec"]["suspend"]]
    assert len(waiting) == 2 and len(gke.pods()) == 1, "the quota is that of one"
    until(lambda: gke.let_go() or command.process.poll() is not None, "the end of the sweep")
    done = command.end()
    assert done.returncode == 0, done.text
    logs = [path.read_text() for path in (gke.directory / "runs").glob("*/logs/worker0.log")]
    assert sorted(logs) == [f"begun\nlr {each}\n" for each in (1, 2, 3)]
    assert gke.left() == []


def test_the_client_of_python_runs_a_job(gke: Gke) -> None:
    job = gke.write('echo done >"$TPUJOB_ARTIFACTS/me"', tpu_metrics=False)
    gke.program = (sys.executable, "-c", IN_PYTHON)
    done = gke(job)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "succeeded ['me'] True", done.text
    assert gke.left() == []
