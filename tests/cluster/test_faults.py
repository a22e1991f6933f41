"""What a cluster refuses, takes away or does not answer: each ends as it should, and is said."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from orchestrator.places.gke.api.refusals import REASONS
from tests.cli_fixture import Command
from tests.cluster.fixture import Cluster
from tests.cluster.gke_fixture import HOLD, Gke, block
from tests.cluster.jobsets import jobset, running, submit
from tests.waiting import until

pytestmark = pytest.mark.cluster

# -- before it runs ----------------------------------------------------------------------------------------------------


def as_user(gke: Gke, *, without: str = "", add: Sequence[str] = ()) -> dict[str, str]:
    """Return the environment of a user who has the Role of the page, less this kind, and may create these."""
    (rules,) = (each["rules"] for each in block("kind: ClusterQueue") if each["kind"] == "Role")
    kept = [each for each in rules if without not in each["resources"]]
    kept += [{"apiGroups": ["", "batch"], "resources": [*add, "none"], "verbs": ["create"]}]
    return {"KUBECONFIG": str(gke.way.user(gke.space, kept))}


def no_jobs(gke: Gke) -> None:
    rule = {"operations": ["CREATE"], "apiGroups": ["batch"], "apiVersions": ["v1"], "resources": ["jobs"]}
    there = {"matchLabels": {"kubernetes.io/metadata.name": gke.space}}
    match = {"matchConstraints": {"resourceRules": [rule], "namespaceSelector": there}}
    spec = match | {"validations": [{"expression": "false", "message": "team policy: no jobs here"}]}
    binding = {"policyName": gke.space, "validationActions": ["Deny"]}
    for kind, has in (("ValidatingAdmissionPolicy", spec), ("ValidatingAdmissionPolicyBinding", binding)):
        base = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": gke.space}}
        gke.cluster.kubectl("create", "-f", "-", given={**base, "spec": has})
    tried = ("create", "job", "j", "--image=x", "-n", gke.space, "--dry-run=server")
    until(lambda: gke.cluster.kubectl(*tried, check=False).returncode, "the policy to be in force")


def few_chips(gke: Gke, chips: int = 7) -> None:
    gke.cluster.kubectl("create", "quota", "tight", f"--hard=requests.google.com/tpu={chips}", "-n", gke.space)
    until(lambda: gke.cluster.get("quota", "tight", "-n", gke.space)["status"].get("hard"), "the quota to be in force")


def secure(gke: Gke) -> None:
    gke.cluster.kubectl("label", "namespace", gke.space, "pod-security.kubernetes.io/enforce=baseline")


def no_quota(gke: Gke) -> None:
    gke.space = gke.cluster.namespace(quota=0)


def no_nodes(gke: Gke) -> None:
    gke.cluster.supply(gke.space, none_left=True)


IMAGE = 'Failed to pull image "registry.example/typo:1" … correct `gke: {image: …}`'
SHORT = {"tpu": {"wait": "10s"}}
SECURES = (secure, {"gke": {"privileged": True}}, 64, "violates PodSecurity")
OF_KUEUE, OF_POD = {"gke": {"priority": "nope"}}, {"gke": {"pod": {"priorityClassName": "nope"}}}
UNTOLD = ("JobSet has made no Job of it", "is there a WorkloadPriorityClass nope?")  # given up after a while
NO_JOBS, UNQUEUED = (no_jobs, {"queue": None}), {"queue": None, **OF_POD}


@pytest.mark.parametrize(("rule", "keys", "code", "words", "rights", "made"), [
    (*NO_JOBS, 64, "team policy: no jobs here", {"add": ["jobs"]}, 0), (*NO_JOBS, 64, "team policy: no jobs here", {}, 1),
    (*NO_JOBS, 69, UNTOLD[0], {"without": "events"}, 1),
    (*SECURES, {"add": ["pods"]}, 0), (*SECURES, {}, 1), (few_chips, {}, 69, "exceeded quota: tight", {}, 1),
    (None, {"gke": {"service_account": "nope"}}, 64, 'serviceaccount "nope" not found', {}, 1),
    (None, UNQUEUED, 64, "no PriorityClass with name nope was found", {}, 1),
    (None, OF_KUEUE, 64, "no WorkloadPriorityClass nope", None, 0), (None, OF_POD, 64, "no PriorityClass nope", None, 0),
    (no_quota, {}, 69, "can never admit it … request (8) > maximum capacity (0)", None, 1),
    (None, {"queue": "nowhere", **SHORT}, 69, "nowhere … doesn't exist", None, 1),
    (no_nodes, {"queue": None, **SHORT}, 69, "GCE out of resources", None, 1),
    (None, {"gke": {"image": "registry.example/typo:1"}}, 64, IMAGE, None, 1),
    (None, {"gke": {"namespace": "nowhere"}}, 64, "nowhere", None, 1),
    (None, {}, 77, "you may not create jobsets", {"without": "jobsets"}, 0),
    (None, OF_KUEUE, 69, UNTOLD[1], {}, 1),
])  # fmt: skip
def test_what_cannot_be_had_ends_the_run_soon_in_the_words_of_what_refuses_it(
    gke: Gke, rule: Any, keys: dict[str, Any], code: int, words: str, rights: dict[str, Any] | None, made: int
) -> None:
    """Who may try it, learns it before anything is made. `rights`: beside those of the page; None: all."""
    if rule is not None:
        rule(gke)
    if words in UNTOLD:
        gke.change("from orchestrator.places.gke import stay; stay.SILENT_S = 5.0")
    done = gke.run(HOLD, pods=2, env={} if rights is None else as_user(gke, **rights), **keys)
    events = gke.cluster.rows("events", gke.space)
    if rule is no_jobs and any(" not found" in each["message"] for each in events if each["reason"] == REASONS[1]):
        # Kueue's cache did not know the JobSet at the first try, and the event keeps the words of the first refusal.
        code, words = 69, UNTOLD[0]
    assert done.returncode == code and all(each in done.stderr for each in words.split(" … ")), done.text
    assert len(gke.leases()) == made and gke.left() == [] == gke.cluster.rows("workloads", gke.space)


def test_a_pod_that_runs_alone_waits_until_the_end_of_the_wait_and_says_for_what(gke: Gke) -> None:
    """Others use up the quota, and may free it."""
    few_chips(gke, 8)
    submit(gke.cluster, gke.space, jobset("other", "sleep 300", "v5p-8"))
    running(gke.cluster, gke.space, 1)
    done = gke.run(HOLD, pods=2, tpu={"wait": "20s"})
    assert done.returncode == 69 and "in time: it is still Pending: 1 of 2 pods have no node, 1 run: " in done.stderr, (
        done.text
    )
    assert "exceeded quota: tight" in done.stderr and gke.left() == []


def test_a_namespace_that_ends_refuses_the_job_and_no_sign_in(gke: Gke) -> None:
    held = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "held", "finalizers": ["tests.example/held"]}}
    env = as_user(gke)
    gke.cluster.kubectl("create", "-n", gke.space, "-f", "-", given=held)
    gke.cluster.kubectl("delete", "namespace", gke.space, "--wait=false")
    done = gke.run("true", env=env)
    gke.cluster.kubectl(*f"patch cm held -n {gke.space} --type=merge -p".split(), '{"metadata": {"finalizers": null}}')
    assert done.returncode == 64 and "being terminated" in done.stderr, done.text


# -- while it runs -----------------------------------------------------------------------------------------------------


def evicted(gke: Gke, pod: dict[str, Any]) -> None:
    gke.cluster.play("evicted", namespace=gke.space, pod=pod["metadata"]["name"])


def preempted(gke: Gke, pod: dict[str, Any]) -> None:
    gke.cluster.play("node_preempted", node=pod["spec"]["nodeName"])


def removed(gke: Gke, pod: dict[str, Any]) -> None:
    gke.cluster.play("node_removed", node=pod["spec"]["nodeName"])


def deleted(gke: Gke, pod: dict[str, Any]) -> None:
    gke.cluster.kubectl("delete", "pod", pod["metadata"]["name"], "-n", gke.space, "--wait=false")


def drained(gke: Gke, pod: dict[str, Any]) -> None:
    node = pod["spec"]["nodeName"]
    gke.cluster.kubectl("drain", node, "--force", "--delete-emptydir-data", "--timeout=1s", check=False)


# As the pod is seen, with the reason or only its deletion, or the Job without it, or what is left of a failed JobSet. The
# control plane looks for pods without nodes every minute.
REMOVED = ("node no longer exists", "its pod was deleted", "its pods were deleted")


@pytest.mark.parametrize(("fault", "pods", "words"), [
    (evicted, 2, ("low on resource: memory",)), (preempted, 2, ("imminent node shutdown",)),
    (drained, 1, ("Eviction API", *REMOVED)), (deleted, 1, REMOVED),
    pytest.param(removed, 2, REMOVED, marks=pytest.mark.long),
], ids=lambda value: getattr(value, "__name__", ""))  # fmt: skip
def test_a_pod_that_is_taken_away_ends_the_run_with_71_and_says_what_took_it(
    gke: Gke, fault: Callable[[Gke, dict[str, Any]], None], pods: int, words: tuple[str, ...]
) -> None:
    command = gke.running(HOLD, pods=pods)
    fault(gke, gke.pods()[-1])
    done = gke.end(command)
    assert done.returncode == 71 and any(each in done.stderr for each in words), done.text
    assert "sent back" not in done.stderr and gke.left() == [], done.text


def test_a_job_that_kueue_preempts_for_a_higher_priority_ends_with_71(gke: Gke) -> None:
    gke.space = gke.cluster.namespace(quota=4)
    command = gke.running(HOLD, gke={"priority": "low"})
    submit(gke.cluster, gke.space, jobset("urgent", HOLD, "v5p-8", queue="tpu", priority="high"))
    done = gke.end(command)
    assert done.returncode == 71 and "Preempted" in done.stderr, done.text
    assert gke.left() == []


def test_a_log_that_may_not_be_read_is_no_pod_that_sent_nothing_and_the_results_wait_in_it(gke: Gke) -> None:
    run = gke.submit(f'{HOLD}echo small >"$TPUJOB_ARTIFACTS/small"')
    until(gke.pods, "its pod")
    gke.cluster.supply(gke.space, idle_s=600)
    attached = gke.begin("attach", run, env=as_user(gke, without="pods/log"))
    until(lambda: gke.let_go() or attached.ended, "the end of the job")
    done = attached.end()
    assert done.returncode == 65 and "could not be read" in done.stderr and gke.jobsets(), done.text
    assert f"`tpujob attach {run}` collects the rest" in done.stderr
    assert gke("attach", run).returncode == 0 and gke.left() == []
    assert (gke.directory_of_run() / "worker0/artifacts/small").read_text() == "small\n"


def test_a_log_that_is_cut_again_and_again_comes_back_whole(gke: Gke) -> None:
    gke.cluster.play("log_cut", namespace=gke.space, after_bytes=700, times=3)
    done = gke.run("for i in $(seq 400); do echo line $i; sleep 0.005; done")
    assert done.returncode == 0, done.text
    log = (gke.directory_of_run() / "logs/worker0.log").read_text()
    assert log == "".join(f"line {each}\n" for each in range(1, 401))


@pytest.mark.parametrize("way", ["closed", "silent"])
def test_an_api_server_that_is_away_for_a_while_ends_nothing(gke: Gke, way: str) -> None:
    command = gke.running(f"{HOLD}echo after")
    gke.way.turn(way)
    gke.let_go()
    until(lambda: gke.cluster.rows("jobs", gke.space)[0]["status"].get("succeeded"), "the end of the job")
    gke.way.turn("open")
    done = gke.end(command)
    assert done.returncode == 0 and "worker0 | after" in done.stdout, done.text
    assert gke.left() == []


def test_an_api_server_that_is_away_to_the_end_leaves_a_run_unproven_and_the_next_command_proves_it(gke: Gke) -> None:
    command = gke.running(HOLD)
    gke.way.turn("closed")
    command.press()  # it ends without waiting for its proof: by the third signal
    command.until("stopping")
    command.press()
    command.until("1 more to leave")
    command.press()
    done = command.end()
    assert done.returncode == 75 and "NOT VERIFIED GONE" in done.stderr, done.text
    assert gke.left() != []
    gke.way.turn("open")
    assert gke("gc", "--local").returncode == 0
    assert gke.left() == []


def test_an_api_server_that_dies_and_starts_again_ends_nothing(gke: Gke, own_cluster: Cluster) -> None:
    """And a pod of another user runs until the cluster ends, which takes it with it (`own_cluster`)."""
    gke.cluster = gke.way = own_cluster
    gke.env["KUBECONFIG"] = str(own_cluster.kubeconfig)
    gke.space = own_cluster.namespace()
    other = own_cluster.namespace()
    submit(own_cluster, other, jobset("j", f"sleep 300 # {own_cluster.directory}"))
    command: Command = gke.running(f"{HOLD}echo after")
    own_cluster.play("server_restarted")
    until(lambda: gke.cluster.kubectl("get", "--raw", "/readyz", check=False).returncode == 0, "the API server")
    gke.let_go()
    done = gke.end(command)
    assert done.returncode == 0 and "worker0 | after" in done.stdout, done.text
    assert gke.left() == []
    running(own_cluster, other)
