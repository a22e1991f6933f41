"""A cluster as a cloud: each call once, absent only once nothing is left, and what a server that starts refuses."""

import json
import re
from collections.abc import Mapping, Sequence
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
from orchestrator.places.gke.objects.manifest import PodProgram, documents
from orchestrator.promise.lease.claim_labels import read_claim
from orchestrator.promise.lease.cloud_api import EVERYWHERE, SliceRequest, SliceState, SliceView
from orchestrator.promise.lease.lease import SliceName
from tests.fakes.clock import Clock
from tests.fakes.cluster_jobs import job
from tests.unit.places.gke.api.store import LABELS, NODE, Store, condition, ended, homeless, jobset, refusal, running

NAME = SliceName("kind@https://k8s.test", "team", NODE, queued=True)
CONFIG = {"metadata": {"name": NODE, "namespace": "team", "uid": "uid-9", "labels": LABELS}}
WITH_SECRET = PodProgram({}, b"", secrets={"TOKEN": "hush"})
PLACE = path_of("jobsets", "team", NODE)


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def cloud(store: Store) -> ClusterCloud:
    return ClusterCloud(lambda project: store.api())


def objects(**more: Any) -> Sequence[Mapping[str, Any]]:
    """Return the objects of a job of two pods."""
    return documents(job("v6e-8", machine_type="ct6e-standard-4t", namespace="team", **more))


def request(**more: Any) -> SliceRequest:
    return SliceRequest(NAME, "v5litepod-8", "", labels=LABELS, manifests=tuple(objects(**more)))


def put(store: Store, found: dict[str, Any], *pods: dict[str, Any]) -> None:
    store.put(PLACE, found)
    for each in pods:
        store.put(path_of("pods", "team", each["metadata"]["name"]), each)


def seen_by(cloud: ClusterCloud) -> SliceView:
    seen = cloud.get(NAME)
    assert seen is not None
    return seen


def test_a_create_makes_the_jobset_as_previewed_then_what_it_owns(cloud: ClusterCloud, store: Store) -> None:
    asked = request(program=WITH_SECRET)
    assert "hush" not in repr(asked)
    shown = cloud.preview(asked)
    assert not store.calls, "a preview sends nothing"
    operation = cloud.create(asked)
    assert operation.done and operation.name == "jobset/uid-1"
    assert store.calls == [f"POST {path_of(kind, 'team')}" for kind in ("jobsets", "secrets", "configmaps")]
    first, *others = ((sent.method, str(sent.url), json.loads(sent.content)) for sent in store.sent)
    assert (shown["method"], shown["url"], shown["body"]) == first and shown["body"] == asked.manifests[0]
    for _, _, body in others:
        (owner,) = body["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("JobSet", NODE, "uid-1")


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


@pytest.mark.parametrize(("refused", "secrets", "named"), [
    ([], True, ""), (["pods/log"], False, "get pods/log"), (["secrets"], False, ""),
    (["jobsets", "secrets"], True, "create jobsets, get jobsets, list jobsets, delete jobsets, create secrets, get secr"),
])  # fmt: skip
def test_a_right_that_is_missing_is_named_before_anything_is_created(
    cloud: ClusterCloud, store: Store, refused: list[str], secrets: bool, named: str
) -> None:
    made = objects(program=WITH_SECRET) if secrets else objects()
    asked_of(store, refused)
    with pytest.raises(AuthError, match=f"you may not {named}") if named else nullcontext():
        cloud.check(NAME.project, made)
    store.instead = lambda call: refusal(403, "Forbidden")  # of the review itself
    cloud.check(NAME.project, made)
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
        cloud.check(NAME.project, objects())
    assert tried == [JOBS, PODS][: 1 if where == JOBS else 2]
    tried = asked_of(store, NO_TRIAL, {where: answer})
    cloud.check(NAME.project, objects())
    assert tried == [] and not store.objects


@pytest.mark.parametrize(("kind", "more"), [
    ("WorkloadPriorityClass", {"queue": "tpu", "priority": "nope"}),
    ("PriorityClass", {"pod": ({"priorityClassName": "nope"},)}),
])  # fmt: skip
@pytest.mark.parametrize(("status", "said", "ends"), [
    (404, 'x "nope" not found', True), (404, "could not find the requested resource", False), (403, "no", False),
])  # fmt: skip
def test_a_priority_that_does_not_exist_is_refused_where_the_user_may_ask(
    cloud: ClusterCloud, store: Store, kind: str, more: Any, status: int, said: str, ends: bool
) -> None:
    where = path_of(f"{kind.lower()}es", "", "nope")
    asked_of(store, NO_TRIAL, {where: refusal(status, "NotFound" if status == 404 else "Forbidden", said)})
    with pytest.raises(errors.BadRequest, match=f"no {kind} nope") if ends else nullcontext():
        cloud.check(NAME.project, objects(**more))
    assert f"GET {where}" in store.calls


UNSERVED = httpx2.Response(404, text="404 page not found\n")


@pytest.mark.parametrize(("where", "answer", "said"), [
    ("workloads", refusal(403, "Forbidden", "no workloads for you"), "no workloads for you"),
    ("workloads", UNSERVED, "is Kueue installed?"), ("kueue.x-k8s.io/v1beta2", UNSERVED, "insufficient quota"),
    ("kueue.x-k8s.io/v1beta2", refusal(404, "NotFound"), "insufficient quota"),
])  # fmt: skip
def test_a_workload_is_read_in_the_version_that_kueue_serves_and_one_that_cannot_be_is_said(
    cloud: ClusterCloud, store: Store, where: str, answer: httpx2.Response, said: str
) -> None:
    store.put(PLACE, jobset(suspend=True, labels={**LABELS, "kueue.x-k8s.io/queue-name": "tpu"}))
    reserved = condition("QuotaReserved", status="False", message="insufficient quota")
    made = {"name": "w", "namespace": "team", "labels": {"kueue.x-k8s.io/job-uid": "uid-1"}}
    place = path_of("workloads", "team", "w", kueue="v1beta1")
    store.put(place, {"metadata": made, "status": {"conditions": [reserved]}})
    store.instead = lambda call: answer if where in str(call.url) else None
    (row,) = cloud.list(NAME.project, "team").rows
    for seen in (seen_by(cloud), row):
        assert seen.state is SliceState.QUEUED and said in seen.native_state


def test_a_list_shows_what_waits_also_while_kueue_does_not_answer(cloud: ClusterCloud, store: Store) -> None:
    store.put(PLACE, jobset(suspend=True, labels={**LABELS, "kueue.x-k8s.io/queue-name": "tpu"}))
    store.instead = lambda call: httpx2.Response(503, text="no webhook") if "workloads" in str(call.url) else None
    (row,) = cloud.list(NAME.project, "team").rows
    assert row.state is SliceState.QUEUED and "why cannot be read" in row.native_state


@pytest.mark.parametrize(("second", "about"), [
    (homeless(1), [f"involvedObject.kind=Pod,involvedObject.name={homeless(1)['metadata']['name']}"]),
    (running(1), []),
])  # fmt: skip
def test_events_are_read_of_a_pod_that_has_not_started_and_else_of_none(
    cloud: ClusterCloud, store: Store, second: dict[str, Any], about: list[str]
) -> None:
    put(store, jobset(), running(0), second)
    seen_by(cloud)
    assert [call.url.params["fieldSelector"] for call in store.sent if call.url.path.endswith("/events")] == about


@pytest.mark.parametrize(("answer", "why"), [
    (None, ": failed calling webhook"), (refusal(403, "Forbidden"), ""), (refusal(400, "BadRequest"), ""),
])  # fmt: skip
def test_pods_that_are_refused_say_why_by_the_events_of_their_job_if_those_may_be_read(
    cloud: ClusterCloud, store: Store, answer: httpx2.Response | None, why: str
) -> None:
    put(store, jobset())
    store.put(path_of("jobs", "team", "j"), {"metadata": {"name": "j", "labels": LABELS}})
    for about, message in (("other-slice-0", "of another job"), (f"{NODE}-slice-0", "failed calling webhook")):
        event = {"reason": "FailedCreate", "message": message, "involvedObject": {"name": about}}
        store.put(path_of("events", "team", about), {"metadata": {"name": about}, **event})
    store.instead = lambda call: answer if call.url.path.endswith("/events") else None
    assert seen_by(cloud).native_state == f"Pending: 2 of 2 pods have no node{why}"


@pytest.mark.parametrize(("failed", "pods"), [(True, 1), (False, 0), (False, 1)])
def test_the_jobs_of_a_jobset_are_read_only_where_it_failed_or_has_no_pods(
    cloud: ClusterCloud, store: Store, failed: bool, pods: int
) -> None:
    put(store, jobset(*[condition("Failed")] if failed else []), *[running(0)] * pods)
    store.put(path_of("jobs", "team", "j"), jobset(condition("Failed", reason="DeadlineExceeded")))
    assert (seen_by(cloud).native_state == "DeadlineExceeded") is failed
    assert (f"GET {path_of('jobs', 'team')}" in store.calls) is (failed or not pods)


def test_a_cluster_that_the_kubeconfig_does_not_have_any_more_is_a_failed_call_of_its_leases_alone() -> None:
    def gone(project: str) -> Any:
        raise errors.ConfigError("no context a", hint="add it")

    with pytest.raises(errors.CloudError, match="no context a") as refused:
        ClusterCloud(gone).get(NAME)
    assert not isinstance(refused.value, NotFound) and (refused.value.exit_code, refused.value.hint) == (64, "add it")


def test_a_list_shows_whether_pods_run_and_fetches_no_code_and_no_secret(cloud: ClusterCloud, store: Store) -> None:
    assert cloud.get(NAME) is None
    put(store, jobset(), running(0), running(1))
    assert [row.state for row in cloud.list(NAME.project, "team").rows] == [SliceState.READY]
    accepted = {(call.url.path.rpartition("/")[2], call.headers["accept"]) for call in store.sent}
    metadata = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
    assert {kind for kind, accept in accepted if accept == metadata} == {"configmaps", "secrets"}
    assert {kind for kind, accept in accepted if "Partial" not in accept} == {"jobsets", "jobs", "pods", NODE}


def test_a_jobset_made_while_the_lists_are_read_is_never_shown_as_gone(cloud: ClusterCloud, store: Store) -> None:
    store.after = lambda call: put(store, jobset(), running(0))
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


def test_what_is_of_another_jobset_or_lease_is_not_taken_for_ours(cloud: ClusterCloud, store: Store) -> None:
    store.put(path_of("configmaps", "team", NODE), CONFIG)
    with pytest.raises(errors.WrongState, match="not of this JobSet"):
        cloud.create(request())
    store.put(PLACE, jobset(labels={"tpujob-lease-id": "another"}))
    with pytest.raises(errors.AlreadyExists):
        cloud.create(request())
    with pytest.raises(errors.WrongState, match="not of this lease"):
        cloud.delete(NAME)


def test_a_cluster_without_the_namespace_or_without_jobset_is_told_so(cloud: ClusterCloud, store: Store) -> None:
    store.instead = lambda sent: refusal(404, "NotFound", 'namespaces "team" not found')
    with pytest.raises(errors.BadRequest, match="no namespace team"):
        cloud.create(request())
    store.instead = lambda sent: UNSERVED
    for call in (lambda: cloud.get(NAME), lambda: cloud.list("", "team"), lambda: cloud.create(request())):
        with pytest.raises(errors.BadRequest, match="does not know JobSets"):
            call()


def test_what_a_jobset_left_is_seen_until_none_of_it_is_left(cloud: ClusterCloud, store: Store) -> None:
    put(store, jobset(), running(0))
    del store.objects[PLACE]
    store.put(path_of("configmaps", "team", NODE), CONFIG)
    seen, (row,) = seen_by(cloud), cloud.list(NAME.project, "team").rows
    assert (seen.state, seen.native_state) == (SliceState.DELETING, "gone but for 1 pod, 1 configmap")
    assert row.labels["tpujob-lease-id"] == LABELS["tpujob-lease-id"]
    for each in (seen, row):  # so that gc deletes it: no JobSet claims it
        claim = read_claim(each, cloud.capabilities.timings)
        assert claim is not None and claim.deadline == 1_790_000_000.0 and not claim.remarks
    assert cloud.delete(NAME) is not None
    assert cloud.get(NAME) is None and cloud.delete(NAME) is None and cloud.list(NAME.project, "team").rows == ()


def test_a_job_that_a_jobset_left_is_listed_by_the_name_of_its_slice(cloud: ClusterCloud, store: Store) -> None:
    store.put(path_of("jobs", "team", "j"), jobset(name=f"{NODE}-slice-0"))
    (row,) = cloud.list(NAME.project, EVERYWHERE).rows
    short = NODE.rpartition("-")[2]
    assert (row.name, row.native_state) == (replace(NAME, node=f"tpujob-{short}"), "gone but for 1 job")


def deletes(store: Store) -> list[tuple[str, str]]:
    """Return how each object was to be deleted, and its uid."""
    sent = [json.loads(each.content) for each in store.sent if each.method == "DELETE"]
    return [(each["propagationPolicy"], each["preconditions"]["uid"]) for each in sent]


def test_what_a_jobset_left_is_deleted_as_far_as_it_is_still_there(cloud: ClusterCloud, store: Store) -> None:
    for name in ("a", "b"):
        store.put(path_of("pods", "team", name), {"metadata": {"name": name, "uid": f"uid-{name}", "labels": LABELS}})
    store.instead = lambda call: refusal(404, "NotFound") if len(deletes(store)) == 1 else None
    operation = cloud.delete(NAME)
    assert operation is not None and not operation.done, "only a look tells whether it is gone"
    assert deletes(store) == [("Background", "uid-a"), ("Background", "uid-b")]


def test_a_delete_waits_for_pods_and_spares_another_jobset_of_its_name(cloud: ClusterCloud, store: Store) -> None:
    cloud.create(request())
    operation = cloud.delete(NAME)
    assert operation is not None and not operation.done and deletes(store) == [("Foreground", "uid-1")]
    store.put(PLACE, jobset())
    # it is replaced between the look and the delete
    store.instead = lambda call: store.put(PLACE, jobset(uid="uid-2")) if call.method == "DELETE" else None
    with pytest.raises(errors.WrongState):
        cloud.delete(NAME)
    assert PLACE in store.objects


def test_a_list_is_read_to_its_end_and_has_the_clock_of_the_server(cloud: ClusterCloud, store: Store) -> None:
    store.page_rows = 2
    for name in (f"tpujob-abc123-{index:010}" for index in range(5)):
        store.put(path_of("jobsets", "team", name), jobset(name=name, labels={**LABELS, "tpujob-lease-id": name[-10:]}))
    listing = cloud.list(NAME.project, "team", queued=True)
    assert len(listing.rows) == 5 and listing.complete and listing.server_now == 1_790_000_300.0
    assert len(cloud.list(NAME.project, EVERYWHERE).rows) == 5
    store.instead = lambda call: refusal(410, "Expired") if b"continue" in call.url.query else None
    with pytest.raises(errors.CloudUnavailable):  # one that expires in the middle proves nothing
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


NEWER = running(0, node="node-9")
NEWER["metadata"] |= {"name": "newer", "creationTimestamp": "2026-09-21T15:00:00Z"}


@pytest.mark.parametrize(("found", "pods", "workers"), [
    (jobset(), [homeless(1), running(0)], [(0, "node-0", running(0)), (1, "", homeless(1))]),
    (jobset(condition("Failed")), [ended(1, 7)], [(1, "node-1", ended(1))]),
    (jobset(hosts=1), [NEWER, running(0)], [(0, "node-9", NEWER)]), (jobset(), [running(0)], None),
])  # fmt: skip
def test_workers_are_the_newest_pods_in_their_order_all_of_them_unless_the_jobset_failed(
    cloud: ClusterCloud, store: Store, found: dict[str, Any], pods: list[dict[str, Any]], workers: list[Any] | None
) -> None:
    put(store, found, *pods)
    with nullcontext() if workers else pytest.raises(errors.WrongState, match="1 of 2 pods"):
        seen = [(each.index, each.instance, each.host) for each in cloud.workers(NAME)]
        assert workers and seen == [(index, node, pod["metadata"]["name"]) for index, node, pod in workers]


def test_nodes_are_those_that_exist_of_the_ones_that_were_asked_for(cloud: ClusterCloud, store: Store) -> None:
    for name in ("gke-a", "gke-b"):
        store.put(f"/api/v1/nodes/{name}", {"metadata": {"name": name}})
    asking = {"containers": [{"resources": {"requests": {"google.com/tpu": "4"}}}], "nodeName": "gke-a"}
    store.put("/api/v1/pods/p", {"metadata": {"name": "p"}, "spec": asking, "status": {"phase": "Running"}})
    assert [(node.name, node.busy) for node in cloud.nodes(NAME.project, ("gke-a", "gone"))] == [("gke-a", True)]
    assert cloud.nodes(NAME.project, ("gone",)) == ()


def test_a_jobset_is_no_vm_and_its_create_is_done_once_it_is_sent(
    cloud: ClusterCloud,
) -> None:
    assert cloud.guest_attributes(NAME) == ()
    for call in (lambda: cloud.start(NAME), lambda: cloud.stop(NAME), lambda: cloud.set_labels(NAME, {})):
        with pytest.raises(errors.BadRequest, match="no TPU VM"):
            call()
    with pytest.raises(errors.Vanished):
        cloud.pods(NAME)
    made = cloud.operation("jobset/uid-1")
    assert made is not None and made.done and made.error is None
    assert cloud.operation("left/x") is None, "only a look tells"


@pytest.mark.parametrize(
    ("kind", "proves"), [("secrets", True), ("configmaps", True), ("jobs", False), ("pods", False)]
)
def test_who_may_not_list_secrets_can_prove_that_nothing_needs_a_tpu(
    cloud: ClusterCloud, store: Store, kind: str, proves: bool
) -> None:
    store.instead = lambda call: refusal(403, "Forbidden") if call.url.path.endswith(f"/{kind}") else None
    with nullcontext() if proves else pytest.raises(AuthError):
        assert cloud.get(NAME) is None
    with nullcontext() if proves else pytest.raises(AuthError):
        assert cloud.list(NAME.project, "team").complete


FORBIDDEN = 'jobsets.jobset.x-k8s.io is forbidden: User "u" cannot get resource "jobsets"'


def refuse(store: Store, code: int = 403) -> None:
    store.instead = lambda request: refusal(code, "Forbidden" if code == 403 else "Unauthorized", FORBIDDEN)


@pytest.mark.parametrize("code", [401, 403])
def test_what_was_allowed_before_is_refused_for_a_while_without_an_end(store: Store, code: int) -> None:
    put(store, jobset())
    clock = Clock(0.0)
    api = store.api(Rights(clock))
    api.get(PLACE)
    refuse(store, code)
    for clock.now in (10.0, 10.0 + kube_api.PATIENCE_S - 1):
        with pytest.raises(CloudUnavailable, match="refuses what it has allowed before"):
            api.get(PLACE)
    clock.now = 10.0 + kube_api.PATIENCE_S
    with pytest.raises(AuthError):
        api.get(PLACE)


def test_a_right_that_comes_back_begins_anew(store: Store) -> None:
    put(store, jobset())
    clock = Clock(0.0)
    api = store.api(Rights(clock))
    for clock.now in (0.0, kube_api.PATIENCE_S - 1, 2 * kube_api.PATIENCE_S - 2):
        store.instead = lambda request: None
        api.get(PLACE)
        refuse(store)
        with pytest.raises(CloudUnavailable):
            api.get(PLACE)


def test_what_was_never_allowed_is_refused_at_once_and_logs_are_a_right_of_their_own(store: Store) -> None:
    api, pod = store.api(), path_of("pods", "team", "p")
    put(store, jobset())
    store.put(pod, {"metadata": {"name": "p"}})
    api.get(PLACE)
    api.get(pod)
    refuse(store)
    for call in (
        lambda: api.list(path_of("jobsets", "team")), lambda: api.delete(PLACE, "uid-1"), lambda: api.list("/api/v1/nodes"),
        lambda: api.stream(f"{pod}/log", {}),
    ):  # fmt: skip
        with pytest.raises(AuthError):
            call()
