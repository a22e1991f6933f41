"""A cluster as a cloud: each call once, absent only once nothing is left, and what a server that starts refuses."""

import json
import re
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from orchestrator import errors
from orchestrator.errors import AuthError, CloudUnavailable
from orchestrator.places.gke.api import client, kube_api
from orchestrator.places.gke.api.client import ClusterCloud
from orchestrator.places.gke.api.kube_api import NotFound, Rights, path_of
from orchestrator.promise.lease.claim_labels import read_claim
from orchestrator.promise.lease.cloud_api import EVERYWHERE, SliceRequest, SliceState
from orchestrator.promise.lease.lease import SliceName
from tests.fakes.clock import Clock
from tests.unit.places.gke.api.store import LEASE, NODE, Store, condition, ended, homeless, jobset, refusal, running

NAME = SliceName("kind@https://k8s.test", "team", NODE, queued=True)
LABELS = {"tpujob": "1", "tpujob-lease-id": LEASE}
CONFIG: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": NODE, "labels": LABELS},
    "binaryData": {},
}
PLACE = path_of("jobsets", "team", NODE)


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def cloud(store: Store) -> ClusterCloud:
    return ClusterCloud(lambda project: store.api())


def request() -> SliceRequest:
    made = jobset()
    del made["metadata"]["uid"], made["status"]
    return SliceRequest(NAME, "v5litepod-8", "", labels=LABELS, manifests=({**made, "kind": "JobSet"}, CONFIG))


def test_a_create_makes_the_jobset_first_and_lets_it_own_the_rest(cloud: ClusterCloud, store: Store) -> None:
    operation = cloud.create(request())
    assert operation.done and operation.name == "jobset/uid-1"
    assert store.calls == [f"POST {path_of('jobsets', 'team')}", f"POST {path_of('configmaps', 'team')}"]
    owner = store.objects[path_of("configmaps", "team", NODE)]["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("JobSet", NODE, "uid-1")
    assert store.bodies[path_of("jobsets", "team")] == request().manifests[0]


def asked_of(store: Store, refused: list[str], answers: dict[str, httpx2.Response] | None = None) -> list[str]:
    """Let a server refuse these kinds, and give these answers by path; return the paths of the objects that are tried."""
    groups, tried = {"jobsets": "jobset.x-k8s.io", "jobs": "batch"}, []

    def answer(call: httpx2.Request) -> httpx2.Response | None:
        sent = json.loads(call.content or "{}")
        if not call.url.path.endswith("selfsubjectaccessreviews"):
            if call.method == "POST":
                assert call.url.params["dryRun"] == "All" and sent["metadata"]["namespace"] == "team" and sent["spec"]
                assert LABELS.items() < sent["metadata"]["labels"].items() and sent["metadata"]["ownerReferences"]
                tried.append(call.url.path)
            return (answers or {}).get(call.url.path)
        about = sent["spec"]["resourceAttributes"]
        assert (about["namespace"], about["group"]) == ("team", groups.get(about["resource"], ""))
        kind = f"{about['resource']}/{about['subresource']}".rstrip("/")
        is_refused = kind in refused or f"{about['verb']} {kind}" in refused
        return httpx2.Response(201, json={"status": {"allowed": not is_refused}})

    store.instead = answer
    return tried


NO_TRIAL = ["create jobs", "create pods"]


def with_parts(*others: dict[str, Any], of_pod: str = "", **labels: str) -> list[dict[str, Any]]:
    """Return the JobSet as it is submitted, with priorities, and what else there is."""
    made = {**request().manifests[0], "apiVersion": "jobset.x-k8s.io/v1alpha2"}
    made["metadata"] = {**made["metadata"], "namespace": "team", "labels": {**LABELS, **labels}}
    (replicated,) = made["spec"]["replicatedJobs"]
    pod = replicated["template"]["spec"]["template"]
    replicated["template"]["metadata"] = pod["metadata"] = {"labels": LABELS}
    pod["spec"]["priorityClassName"] = of_pod
    return [made, *others]


@pytest.mark.parametrize(("refused", "secrets", "named"), [
    ([], True, ""), (["pods/log"], False, "get pods/log"), (["secrets"], False, ""),
    (["jobsets", "secrets"], True, "create jobsets, get jobsets, list jobsets, delete jobsets, create secrets, get secr"),
])  # fmt: skip
def test_a_right_that_is_missing_is_named_before_anything_is_created(
    cloud: ClusterCloud, store: Store, refused: list[str], secrets: bool, named: str
) -> None:
    objects = with_parts(*[{**CONFIG, "kind": "Secret"}] * secrets)
    asked_of(store, refused)
    with pytest.raises(AuthError, match=f"you may not {named}") if named else nullcontext():
        cloud.check(NAME.project, objects)
    store.instead = lambda call: refusal(403, "Forbidden")  # of the review itself
    cloud.check(NAME.project, objects)
    assert not store.objects


PODS, JOBS = path_of("pods", "team"), path_of("jobs", "team")


@pytest.mark.parametrize(("where", "answer", "error"), [
    (JOBS, refusal(403, "Forbidden", "jobs.batch \"x\" is forbidden: ValidatingAdmissionPolicy 'p' denied request: no"),
     errors.BadRequest),
    (PODS, refusal(403, "Forbidden", "exceeded quota: q, requested: a=1,pods=1, used: a=0,pods=0, limited: a=9,pods=1"),
     errors.QuotaError),
    (PODS, refusal(403, "Forbidden", "exceeded quota: q, requested: memory=1Gi, used: memory=1, limited: memory=2148M"), None),
    (PODS, refusal(400, "BadRequest", 'admission webhook "w" does not support dry run'), None),
])  # fmt: skip
def test_what_would_be_made_of_a_job_is_tried_where_the_user_may_make_it(
    cloud: ClusterCloud, store: Store, where: str, answer: httpx2.Response, error: type[errors.CloudError] | None
) -> None:
    """Two pods: a quota that has no room for both will never have."""
    tried = asked_of(store, [], {where: answer})
    said = json.loads(answer.content)["message"]
    with pytest.raises(error, match=re.escape(said)) if error else nullcontext():
        cloud.check(NAME.project, with_parts())
    assert tried == [JOBS, PODS][: 1 if where == JOBS else 2]
    tried = asked_of(store, NO_TRIAL, {where: answer})
    cloud.check(NAME.project, with_parts())
    assert tried == [] and not store.objects


@pytest.mark.parametrize(("kind", "objects"), [
    ("WorkloadPriorityClass", with_parts(**{"kueue.x-k8s.io/priority-class": "nope"})),
    ("PriorityClass", with_parts(of_pod="nope")),
])  # fmt: skip
@pytest.mark.parametrize(("status", "said", "ends"), [
    (404, 'x "nope" not found', True), (404, "could not find the requested resource", False), (403, "no", False),
])  # fmt: skip
def test_a_priority_that_does_not_exist_is_refused_where_the_user_may_ask(
    cloud: ClusterCloud, store: Store, kind: str, objects: Any, status: int, said: str, ends: bool
) -> None:
    where = path_of(f"{kind.lower()}es", "", "nope")
    asked_of(store, NO_TRIAL, {where: refusal(status, "NotFound" if status == 404 else "Forbidden", said)})
    with pytest.raises(errors.BadRequest, match=f"no {kind} nope") if ends else nullcontext():
        cloud.check(NAME.project, objects)
    assert f"GET {where}" in store.calls


def test_a_preview_shows_the_jobset_as_a_create_sends_it(cloud: ClusterCloud, store: Store) -> None:
    shown = cloud.preview(request())
    assert not store.calls, "a preview sends nothing"
    sent: list[httpx2.Request] = []
    store.instead = sent.append
    cloud.create(request())
    assert (shown["method"], shown["url"]) == (sent[0].method, str(sent[0].url))
    assert shown["body"] == store.bodies[path_of("jobsets", "team")]


def test_a_create_keeps_the_order_in_which_the_objects_are_needed(cloud: ClusterCloud, store: Store) -> None:
    secret = {**CONFIG, "kind": "Secret"}
    cloud.create(replace(request(), manifests=(request().manifests[0], secret, CONFIG)))
    assert store.calls == [f"POST {path_of(kind, 'team')}" for kind in ("jobsets", "secrets", "configmaps")]


def test_what_is_asked_for_shows_no_secret() -> None:
    secret = {**CONFIG, "kind": "Secret", "stringData": {"TOKEN": "hush"}}
    assert "hush" not in repr(replace(request(), manifests=(request().manifests[0], CONFIG, secret)))


def test_a_workload_that_may_not_be_read_is_said(cloud: ClusterCloud, store: Store) -> None:
    queue = {"kueue.x-k8s.io/queue-name": "tpu"}
    store.put(PLACE, jobset(suspend=True, labels={**LABELS, **queue}))
    for answer, said in (
        (refusal(403, "Forbidden", "no workloads for you"), "no workloads for you"),
        (httpx2.Response(404, text="404 page not found"), "is Kueue installed?"),
    ):
        store.instead = lambda call, answer=answer: answer if "workloads" in str(call.url) else None
        seen = cloud.get(NAME)
        assert seen is not None and seen.state is SliceState.QUEUED and said in seen.native_state


def test_pods_that_are_refused_say_why_by_the_events_of_their_job(cloud: ClusterCloud, store: Store) -> None:
    store.put(PLACE, jobset())
    store.put(path_of("jobs", "team", "j"), {"metadata": {"name": "j", "labels": LABELS}})
    why = "Internal error occurred: failed calling webhook"
    other = {"reason": "FailedCreate", "message": "of another job", "involvedObject": {"name": "other-slice-0"}}
    mine = {"reason": "FailedCreate", "message": why, "involvedObject": {"name": f"{NODE}-slice-0"}}
    for number, event in enumerate((other, mine)):
        store.put(path_of("events", "team", f"e{number}"), {"metadata": {"name": f"e{number}"}, **event})
    seen = cloud.get(NAME)
    assert seen is not None and seen.native_state == f"Pending: 2 of 2 pods have no node: {why}"


@pytest.mark.parametrize(("second", "about"), [
    (homeless(1), [f"involvedObject.kind=Pod,involvedObject.name={homeless(1)['metadata']['name']}"]),
    (running(1), []),
])  # fmt: skip
def test_events_are_read_of_a_pod_that_has_not_started_and_else_of_none(
    cloud: ClusterCloud, store: Store, second: dict[str, Any], about: list[str]
) -> None:
    asked: list[str] = []

    def read(call: httpx2.Request) -> None:
        if call.url.path.endswith("/events"):
            asked.append(call.url.params["fieldSelector"])

    store.instead = read
    store.put(PLACE, jobset())
    for number, made in enumerate((running(0), second)):
        store.put(path_of("pods", "team", f"p{number}"), made)
    assert cloud.get(NAME) is not None and asked == about


@pytest.mark.parametrize("answer", [refusal(403, "Forbidden"), refusal(400, "BadRequest")])
def test_a_user_who_may_not_read_events_sees_a_slice_that_waits(
    cloud: ClusterCloud, store: Store, answer: httpx2.Response
) -> None:
    store.put(PLACE, jobset())
    store.put(path_of("jobs", "team", "j"), {"metadata": {"name": "j", "labels": LABELS}})
    store.instead = lambda call: answer if call.url.path.endswith("/events") else None
    seen = cloud.get(NAME)
    assert seen is not None and seen.native_state == "Pending: 2 of 2 pods have no node"


@pytest.mark.parametrize(("failed", "pods"), [(True, 1), (False, 0), (False, 1)])
def test_the_jobs_of_a_jobset_are_read_only_where_it_failed_or_has_no_pods(
    cloud: ClusterCloud, store: Store, failed: bool, pods: int
) -> None:
    store.put(PLACE, jobset(*[condition("Failed")] if failed else []))
    store.put(path_of("jobs", "team", "j"), jobset(condition("Failed", reason="DeadlineExceeded")))
    for host in range(pods):
        store.put(path_of("pods", "team", f"p{host}"), running(host))
    seen = cloud.get(NAME)
    assert seen is not None and (seen.native_state == "DeadlineExceeded") is failed
    assert (f"GET {path_of('jobs', 'team')}" in store.calls) is (failed or not pods)


def test_a_list_shows_whether_the_pods_of_a_jobset_run(cloud: ClusterCloud, store: Store) -> None:
    store.put(PLACE, jobset())
    for host in range(2):
        store.put(path_of("pods", "team", f"p{host}"), running(host))
    assert [row.state for row in cloud.list(NAME.project, "team").rows] == [SliceState.READY]


def test_a_cluster_that_the_kubeconfig_does_not_have_any_more_is_a_failed_call_of_its_leases_alone() -> None:
    def gone(project: str) -> Any:
        raise errors.ConfigError("no context a", hint="add it")

    with pytest.raises(errors.CloudError, match="no context a") as refused:
        ClusterCloud(gone).get(NAME)
    assert not isinstance(refused.value, NotFound) and (refused.value.exit_code, refused.value.hint) == (64, "add it")


def test_a_workload_is_read_in_the_version_that_kueue_serves(cloud: ClusterCloud, store: Store) -> None:
    store.put(PLACE, jobset(suspend=True, labels={**LABELS, "kueue.x-k8s.io/queue-name": "tpu"}))
    reserved = condition("QuotaReserved", status="False", message="insufficient quota")
    made = {"name": "w", "namespace": "team", "labels": {"kueue.x-k8s.io/job-uid": "uid-1"}}
    store.put(
        "/apis/kueue.x-k8s.io/v1beta1/namespaces/team/workloads/w",
        {"metadata": made, "status": {"conditions": [reserved]}},
    )
    for unserved in (httpx2.Response(404, text="404 page not found\n"), refusal(404, "NotFound")):
        store.instead = lambda call, answer=unserved: answer if "kueue.x-k8s.io/v1beta2" in str(call.url) else None
        seen = cloud.get(NAME)
        assert seen is not None and "insufficient quota" in seen.native_state


def test_what_config_maps_and_secrets_hold_is_not_fetched_with_their_lists(cloud: ClusterCloud, store: Store) -> None:
    asked: dict[str, str] = {}
    store.instead = lambda call: asked.__setitem__(call.url.path.rpartition("/")[2], call.headers["accept"])
    cloud.list(NAME.project, "team")
    assert cloud.get(NAME) is None
    metadata = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
    assert {kind for kind, accept in asked.items() if accept == metadata} == {"configmaps", "secrets"}
    assert all("Partial" not in asked[kind] for kind in ("jobsets", "jobs", "pods"))


def test_a_jobset_that_is_made_while_the_lists_are_read_is_never_shown_as_gone(
    cloud: ClusterCloud, store: Store
) -> None:
    def make(call: httpx2.Request) -> None:
        store.put(PLACE, jobset())
        store.put(path_of("pods", "team", "a"), running(0))

    store.after = make
    (row,) = cloud.list(NAME.project, "team").rows
    assert row.name == NAME and row.state is not SliceState.DELETING


def test_a_create_that_is_sent_again_continues_where_it_was_broken_off(cloud: ClusterCloud, store: Store) -> None:
    store.after = lambda sent: httpx2.ReadTimeout("late") if len(store.calls) == 1 else None
    with pytest.raises(errors.CloudUnavailable):
        cloud.create(request())
    assert cloud.create(request()).name == cloud.create(request()).name == "jobset/uid-1"
    assert path_of("configmaps", "team", NODE) in store.objects


def test_a_create_begins_nothing_once_its_time_is_over_so_that_it_settles_as_said(
    cloud: ClusterCloud, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter((0.0, client.BEGUN_WITHIN_S + 1.0))
    monkeypatch.setattr(client.time, "monotonic", lambda: next(clock))
    with pytest.raises(errors.CloudUnavailable, match="ConfigMap is not made yet"):
        cloud.create(request())
    assert store.calls == [f"POST {path_of('jobsets', 'team')}"]


def test_a_create_settles_only_after_the_last_effect_that_its_requests_can_have(cloud: ClusterCloud) -> None:
    """The last one begins, is signed, connects and is sent, and the server drops it after a minute."""
    last_s = client.BEGUN_WITHIN_S + client.PLUGIN_S + 2 * kube_api.TIMEOUT_S + 60
    assert cloud.capabilities.settles_within_s >= last_s and cloud.capabilities.visible_within_s >= last_s


def test_a_config_map_of_another_jobset_is_neither_used_nor_taken_for_ours(cloud: ClusterCloud, store: Store) -> None:
    store.put(path_of("configmaps", "team", NODE), CONFIG)
    with pytest.raises(errors.WrongState, match="not of this JobSet"):
        cloud.create(request())


def test_a_jobset_of_this_name_that_is_not_of_this_lease_is_not_adopted(cloud: ClusterCloud, store: Store) -> None:
    store.put(PLACE, jobset(labels={"tpujob-lease-id": "another"}))
    with pytest.raises(errors.AlreadyExists):
        cloud.create(request())
    with pytest.raises(errors.WrongState, match="not of this lease"):
        cloud.delete(NAME)


def test_a_namespace_that_does_not_exist_is_refused_by_its_name(cloud: ClusterCloud, store: Store) -> None:
    store.instead = lambda sent: refusal(404, "NotFound", 'namespaces "team" not found')
    with pytest.raises(errors.BadRequest, match="no namespace team"):
        cloud.create(request())


def test_a_cluster_without_jobset_says_who_installs_it(cloud: ClusterCloud, store: Store) -> None:
    store.instead = lambda sent: httpx2.Response(404, text="404 page not found\n")
    for call in (lambda: cloud.get(NAME), lambda: cloud.list("", "team"), lambda: cloud.create(request())):
        with pytest.raises(errors.BadRequest, match="does not know JobSets"):
            call()


def test_what_a_jobset_left_is_seen_until_none_of_it_is_left(cloud: ClusterCloud, store: Store) -> None:
    store.put(path_of("pods", "team", running(0)["metadata"]["name"]), running(0))
    store.put(
        path_of("configmaps", "team", NODE),
        {**CONFIG, "metadata": {**CONFIG["metadata"], "namespace": "team", "uid": "uid-9"}},
    )
    seen = cloud.get(NAME)
    assert seen is not None and (seen.state, seen.native_state) == (
        SliceState.DELETING,
        "gone but for 1 pod, 1 configmap",
    )
    listed = cloud.list(NAME.project, "team").rows
    assert [row.labels["tpujob-lease-id"] for row in listed] == [LEASE]
    for row in (seen, *listed):  # so that gc deletes it: no JobSet claims it
        claim = read_claim(row, cloud.capabilities.timings)
        assert claim is not None and claim.deadline == 1_790_000_000.0 and not claim.remarks
    assert cloud.delete(NAME) is not None
    assert cloud.get(NAME) is None and cloud.delete(NAME) is None and cloud.list(NAME.project, "team").rows == ()


def test_a_job_alone_that_a_jobset_left_is_listed_under_the_name_of_its_slice(
    cloud: ClusterCloud, store: Store
) -> None:
    store.put(path_of("jobs", "team", "j"), jobset(name=f"{NODE}-slice-0"))
    (row,) = cloud.list(NAME.project, EVERYWHERE).rows
    short = NODE.rpartition("-")[2]
    assert (row.name, row.native_state) == (replace(NAME, node=f"tpujob-{short}"), "gone but for 1 job")


def test_what_a_jobset_left_is_deleted_each_by_itself_as_far_as_it_is_still_there(
    cloud: ClusterCloud, store: Store
) -> None:
    for name, uid in (("a", "uid-a"), ("b", "uid-b")):
        store.put(path_of("pods", "team", name), {"metadata": {"name": name, "uid": uid, "labels": LABELS}})
    sent: list[bytes] = []

    def lost(call: httpx2.Request) -> httpx2.Response | None:
        sent.extend([call.content] if call.method == "DELETE" else [])
        return refusal(404, "NotFound") if len(sent) == 1 and call.method == "DELETE" else None

    store.instead = lost
    operation = cloud.delete(NAME)
    assert operation is not None and not operation.done, "only a look tells whether it is gone"
    assert all(b'"Background"' in each and uid in each for each, uid in zip(sent, (b"uid-a", b"uid-b"), strict=True))


def test_a_delete_names_the_uid_and_waits_for_the_pods(cloud: ClusterCloud, store: Store) -> None:
    cloud.create(request())
    sent: list[bytes] = []
    store.instead = lambda call: sent.append(call.content) if call.method == "DELETE" else None
    operation = cloud.delete(NAME)
    assert operation is not None and not operation.done
    options = json.loads(sent[0])
    assert options["propagationPolicy"] == "Foreground" and options["preconditions"] == {"uid": "uid-1"}


def test_another_jobset_of_the_same_name_is_never_deleted(cloud: ClusterCloud, store: Store) -> None:
    store.put(PLACE, jobset())

    # it is replaced between the look and the delete
    def replace(call: httpx2.Request) -> None:
        if call.method == "DELETE":
            store.put(PLACE, jobset(uid="uid-2"))

    store.instead = replace
    with pytest.raises(errors.WrongState):
        cloud.delete(NAME)
    assert PLACE in store.objects


def test_a_list_is_read_to_its_end_and_has_the_clock_of_the_server(cloud: ClusterCloud, store: Store) -> None:
    store.page_rows = 2
    for index in range(5):
        made = jobset(name=f"tpujob-abc123-{index:010}", labels={"tpujob": "1", "tpujob-lease-id": f"{index:010}"})
        store.put(path_of("jobsets", "team", f"tpujob-abc123-{index:010}"), made)
    listing = cloud.list(NAME.project, "team", queued=True)
    assert len(listing.rows) == 5 and listing.complete and listing.server_now == 1_790_000_300.0
    assert len(cloud.list(NAME.project, EVERYWHERE).rows) == 5


def test_a_list_that_expires_in_the_middle_proves_nothing(cloud: ClusterCloud, store: Store) -> None:
    store.page_rows = 1
    store.put(PLACE, jobset())
    store.put(PLACE + "2", jobset(name=NODE + "2"))
    store.instead = lambda call: refusal(410, "Expired") if b"continue" in call.url.query else None
    with pytest.raises(errors.CloudUnavailable):
        cloud.list(NAME.project, "team")


@pytest.mark.parametrize(("answer", "error"), [
    (refusal(401, "Unauthorized"), errors.AuthError),
    (refusal(403, "Forbidden", 'jobsets is forbidden: User "x" cannot get resource'), errors.AuthError),
    (refusal(403, "Forbidden", "GKE Warden rejected the request because it violates one or more constraints"),
     errors.BadRequest),
    (refusal(403, "Forbidden", 'pods "x" is forbidden: unable to create new content in namespace team because it is being t'),
     errors.BadRequest),
    (refusal(403, "Forbidden", 'pods "x" is forbidden: status unknown for quota: q, resources: pods'), CloudUnavailable),
    (refusal(403, "Forbidden", "exceeded quota: team, requested: count/jobsets=1"), errors.QuotaError),
    (refusal(422, "Invalid"), errors.BadRequest),
    (refusal(400, "BadRequest", "admission webhook denied the request"), errors.BadRequest),
    (refusal(409, "Conflict"), errors.WrongState), (refusal(429, "TooManyRequests"), errors.CloudUnavailable),
    (refusal(500, "InternalError", "failed calling webhook"), errors.CloudUnavailable),
    (refusal(404, "SomethingElse"), errors.UnexpectedReply),
    (httpx2.Response(200, text="<html>"), errors.UnexpectedReply),
    (httpx2.Response(200, json=[1]), errors.UnexpectedReply),
    (httpx2.Response(302, text=""), errors.UnexpectedReply),
    (httpx2.Response(503, text="upstream"), errors.CloudUnavailable),
    (httpx2.ConnectError("refused"), errors.CloudUnavailable), (httpx2.ReadTimeout("late"), errors.CloudUnavailable),
    (httpx2.RemoteProtocolError("broke off"), errors.CloudUnavailable),
])  # fmt: skip
def test_no_failure_is_taken_for_absence(
    cloud: ClusterCloud, store: Store, answer: Any, error: type[errors.CloudError]
) -> None:
    store.instead = lambda call: answer
    with pytest.raises(error):
        cloud.get(NAME)


def test_workers_are_the_pods_in_their_order(cloud: ClusterCloud, store: Store) -> None:
    store.put(PLACE, jobset())
    store.put(path_of("pods", "team", "b"), homeless(1))
    store.put(path_of("pods", "team", "a"), running(0))
    found = cloud.workers(NAME)
    assert [(each.index, each.instance) for each in found] == [(0, "node-0"), (1, "")]
    assert found[0].host == f"{NODE}-slice-0-0-abcde"


def test_workers_of_which_one_is_missing_are_none(cloud: ClusterCloud, store: Store) -> None:
    store.put(PLACE, jobset())
    store.put(path_of("pods", "team", "a"), running(0))
    with pytest.raises(errors.WrongState, match="1 of 2 pods"):
        cloud.workers(NAME)


def test_of_a_jobset_that_failed_the_workers_are_the_pods_that_are_left(cloud: ClusterCloud, store: Store) -> None:
    store.put(PLACE, jobset(condition("Failed")))
    store.put(path_of("pods", "team", "a"), ended(1, 7))
    assert [each.index for each in cloud.workers(NAME)] == [1]


def test_of_two_pods_of_one_worker_the_newer_one_counts(cloud: ClusterCloud, store: Store) -> None:
    store.put(PLACE, jobset(hosts=1))
    old, new = running(0), running(0, node="node-9")
    new["metadata"] |= {"name": "newer", "creationTimestamp": "2026-09-21T15:00:00Z"}
    store.put(path_of("pods", "team", "a"), new)
    store.put(path_of("pods", "team", "b"), old)
    assert [each.host for each in cloud.workers(NAME)] == ["newer"]


def test_nodes_are_those_that_exist_of_the_ones_that_were_asked_for(cloud: ClusterCloud, store: Store) -> None:
    for name in ("gke-a", "gke-b"):
        store.put(f"/api/v1/nodes/{name}", {"metadata": {"name": name}})
    asking = {"containers": [{"resources": {"requests": {"google.com/tpu": "4"}}}], "nodeName": "gke-a"}
    store.put("/api/v1/pods/p", {"metadata": {"name": "p"}, "spec": asking, "status": {"phase": "Running"}})
    assert [(node.name, node.busy) for node in cloud.nodes(NAME.project, ("gke-a", "gone"))] == [("gke-a", True)]
    assert cloud.nodes(NAME.project, ("gone",)) == ()


def test_pods_of_a_jobset_that_is_gone_cannot_be_followed(cloud: ClusterCloud) -> None:
    with pytest.raises(errors.Vanished):
        cloud.pods(NAME)


def test_a_jobset_is_neither_started_nor_stopped_nor_labeled_anew_and_publishes_nothing(cloud: ClusterCloud) -> None:
    assert cloud.guest_attributes(NAME) == ()
    for call in (lambda: cloud.start(NAME), lambda: cloud.stop(NAME), lambda: cloud.set_labels(NAME, {})):
        with pytest.raises(errors.BadRequest, match="no TPU VM"):
            call()


def test_a_create_is_known_as_done_and_a_delete_only_by_looking() -> None:
    cloud = ClusterCloud(lambda project: Store().api())
    made = cloud.operation("jobset/uid-1")
    assert made is not None and made.done and made.error is None
    assert cloud.operation("left/x") is None


def test_a_user_who_may_not_list_secrets_can_prove_that_nothing_needs_a_tpu(store: Store) -> None:
    def user_without(kind: str) -> ClusterCloud:
        store.instead = lambda call: refusal(403, "Forbidden") if call.url.path.endswith(f"/{kind}") else None
        return ClusterCloud(lambda project: store.api())

    for kind in ("secrets", "configmaps"):
        cloud = user_without(kind)
        assert cloud.get(NAME) is None and cloud.list(NAME.project, "team").complete
    for kind in ("jobs", "pods"):
        cloud = user_without(kind)
        with pytest.raises(errors.AuthError):
            cloud.get(NAME)
        with pytest.raises(errors.AuthError):
            cloud.list(NAME.project, "team")


FORBIDDEN = 'jobsets.jobset.x-k8s.io is forbidden: User "u" cannot get resource "jobsets"'


@pytest.fixture
def store_with_job() -> Store:
    made = Store()
    made.put(PLACE, jobset())
    return made


def refuse(store_with_job: Store, code: int = 403) -> None:
    store_with_job.instead = lambda request: refusal(code, "Forbidden" if code == 403 else "Unauthorized", FORBIDDEN)


@pytest.mark.parametrize("code", [401, 403])
def test_what_was_allowed_before_is_refused_for_a_while_without_an_end(store_with_job: Store, code: int) -> None:
    clock = Clock(0.0)
    api = store_with_job.api(Rights(clock))
    api.get(PLACE)
    refuse(store_with_job, code)
    for clock.now in (10.0, 10.0 + kube_api.PATIENCE_S - 1):
        with pytest.raises(CloudUnavailable, match="refuses what it has allowed before"):
            api.get(PLACE)
    clock.now = 10.0 + kube_api.PATIENCE_S
    with pytest.raises(AuthError):
        api.get(PLACE)


def test_a_right_that_comes_back_begins_anew(store_with_job: Store) -> None:
    clock = Clock(0.0)
    api = store_with_job.api(Rights(clock))
    for clock.now in (0.0, kube_api.PATIENCE_S - 1, 2 * kube_api.PATIENCE_S - 2):
        store_with_job.instead = lambda request: None
        api.get(PLACE)
        refuse(store_with_job)
        with pytest.raises(CloudUnavailable):
            api.get(PLACE)


def test_what_was_never_allowed_is_refused_at_once(store_with_job: Store) -> None:
    api = store_with_job.api()
    api.get(PLACE)
    refuse(store_with_job)
    with pytest.raises(AuthError):
        api.list(path_of("jobsets", "team"))  # another right
    with pytest.raises(AuthError):
        api.delete(PLACE, "uid-1")
    with pytest.raises(AuthError):
        api.list("/api/v1/nodes")


def test_logs_are_a_right_of_their_own(store_with_job: Store) -> None:
    pod = path_of("pods", "team", "p")
    store_with_job.put(pod, {"metadata": {"name": "p"}})
    api = store_with_job.api()
    api.get(pod)
    refuse(store_with_job)
    with pytest.raises(AuthError):
        api.stream(f"{pod}/log", {})
