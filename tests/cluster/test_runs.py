"""A job of two pods to its end, what is sent and what `export` prints of it, and what kubectl shows beside tpujob."""

import json
from typing import Any

import pytest
import yaml
from lightkube.config.kubeconfig import KubeConfig

from orchestrator.errors import WrongState
from orchestrator.places.gke.api import kube_api
from tests.cluster.gke_fixture import HOLD, MEET, Gke
from tests.waiting import until

pytestmark = pytest.mark.cluster

HELLO = f"""
python3 -c '{MEET}'
echo worker $TPUJOB_WORKER of $TPUJOB_WORKERS
echo "result $TPUJOB_WORKER" > "$TPUJOB_ARTIFACTS/result.txt"
"""


def test_a_job_of_two_pods_comes_back_with_logs_results_and_a_page_and_leaves_nothing(gke: Gke) -> None:
    done = gke.run(HELLO, "--watch-nodes", pods=2, name="hello")
    assert done.returncode == 0, done.text
    assert sorted(done.stdout.splitlines()[:2]) == [f"worker{each} | worker {each} of 2" for each in (0, 1)]
    directory = gke.directory_of_run()
    for each in (0, 1):
        assert (directory / f"logs/worker{each}.log").read_text() == f"worker {each} of 2\n"
        assert (directory / f"worker{each}/artifacts/result.txt").read_text() == f"result {each}\n"
    assert "succeeded" in (directory / "report.html").read_text()
    assert "absent (checked" in done.text and gke.left() == []
    assert "all 2 nodes are gone" in done.stderr and gke.cluster.nodes(gke.space) == []


def test_a_worker_that_fails_ends_the_others_and_the_run_has_its_code(gke: Gke) -> None:
    done = gke.run("[ $TPUJOB_WORKER = 0 ] || exit 3; sleep 300", pods=2, tpu={"provisioning": "spot"})
    assert done.returncode == 3 and "on worker1 with code 3" in done.text, done.text
    assert gke.left() == []


def test_what_is_sent_is_what_the_run_keeps_and_what_export_prints(gke: Gke) -> None:
    file, mine = gke.write("true", name="hello", env={"GREETING": "${env:GREETING}"}), {"GREETING": "hi"}
    assert gke("run", file, env=mine).returncode == 0
    shown, sent = gke.only_run(), posted(gke)
    kept = (gke.directory_of_run() / "jobset.yaml").read_text()
    owners = [body["metadata"].pop("ownerReferences", None) for body in sent]
    assert [each and each[0]["name"] for each in owners] == [None, *[shown["lease"]["node"]] * 2]
    ids = shown["run"], shown["lease"]["id"]
    whole = gke.with_ids(*ids)("export", file, "--to", "jobset", "--with-secrets", env=mine)
    documents = list(yaml.safe_load_all(whole.stdout))
    assert [each["stringData"] for each in documents if each["kind"] == "Secret"] == [mine]
    gke.cluster.kubectl("create", "--dry-run=server", "-f", "-", given=documents)
    assert sent == posted(gke)[len(sent) :], "the server reads the same of both senders"
    printed = gke.with_ids(*ids)("export", file, "--to", "jobset")
    assert without_comment(printed.stdout) == without_comment(kept) and "kind: Secret" not in kept


def test_kubectl_shows_what_status_and_show_do(gke: Gke) -> None:
    command = gke.running(HOLD, pods=2)
    shown = gke.only_run()
    (listed,) = json.loads(gke("status", "--json").stdout)["slices"]
    node = shown["lease"]["node"]
    assert (listed["node"], listed["state"], listed["run"]) == (node, "Running", shown["run"])
    assert shown["lease"]["state"] == "ready"
    (jobset,), (workload,), pods = gke.jobsets(), gke.cluster.rows("workloads", gke.space), gke.pods()
    assert jobset["metadata"]["name"] == workload["metadata"]["ownerReferences"][0]["name"] == node
    assert jobset["metadata"]["labels"]["tpujob-run"] == shown["run"]
    assert [pod["metadata"]["labels"]["jobset.sigs.k8s.io/jobset-name"] for pod in pods] == [node] * 2
    config = KubeConfig.from_file(gke.cluster.kubeconfig).get()
    with pytest.raises(WrongState):
        kube_api.connect(config).delete(kube_api.path_of("jobsets", gke.space, node), "the uid of another")
    gke.cluster.supply(gke.space, idle_s=600)
    gke.let_go()
    assert command.end().returncode == 0
    left, used = "ended runs have left", " ".join(gke.begin("status").end().stdout.split())
    assert f"{left} 2 nodes" in used and all(pod["spec"]["nodeName"] in used for pod in pods)
    until(lambda: left not in gke("status").stdout, "the nodes to go")


def posted(gke: Gke) -> list[dict[str, Any]]:
    """Return the bodies of what was created as tpujob's, in their order, as the server has read them."""
    rows = [each for each in gke.cluster.requests(gke.space) if each["verb"] == "create"]
    # Jobs and pods are only tried, before the rest is created.
    bodies = [each["requestObject"] for each in rows if each["objectRef"]["resource"] not in ("jobs", "pods")]
    return [body for body in bodies if "tpujob" in (body["metadata"].get("labels") or {})]


def without_comment(text: str) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))
