"""Client and emulator, which share no code: the life of a slice, queued or not, through `promise.lease.cloud_api.Cloud`."""

import json
import socket
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from orchestrator import catalog, errors
from orchestrator.errors import CapacityError, WrongState
from orchestrator.hosts.fleet.fleet import Fleet, StartRequest
from orchestrator.places.tpu.api.client import TpuApi, connect
from orchestrator.places.tpu.place import PLACE as CLOUD_TPU
from orchestrator.promise.lease import claim_labels
from orchestrator.promise.lease.cloud_api import Cloud, QueueTerms, SliceRequest, SliceState, SliceView
from orchestrator.promise.lease.lease import Lease, SliceName
from orchestrator.promise.lease.periods import GOOGLE
from orchestrator.promise.obtain.login_key import create_key, ssh_keys_metadata
from orchestrator.promise.obtain.startup_script import startup_script, watchdog_config
from orchestrator.settings import Target
from tests.contract.conftest import finish
from tests.emulator.fixture import Emulator
from tests.fakes.leases import lease_on
from tests.waiting import HANG_S, until

EMULATED = Target("emulated", "emulated")
ZONE = "us-central1-a"
numbers = count(1)


@pytest.fixture
def api(shared_emulator: Emulator) -> Cloud:
    return connect(EMULATED, shared_emulator.url, shared_emulator.token)


def request(accelerator_type: str = "v5litepod-4", zone: str = ZONE, project: str = "emulated") -> SliceRequest:
    """A new name each time."""
    name = SliceName(project, zone, f"tpujob-client-{next(numbers)}")
    labels = {"tpujob": "1", "tpujob-lease-id": name.node}
    return SliceRequest(
        name, accelerator_type, "v2-alpha-tpuv5-lite", labels=labels, metadata={"some-key": "some value"}
    )


def delete(api: Cloud, name: SliceName) -> None:
    operation = api.delete(name)
    if operation is not None:
        finish(api, operation)


def test_the_life_of_a_slice(api: Cloud) -> None:
    wanted = request()
    assert api.get(wanted.name) is None
    created = api.create(wanted)
    path = f"projects/emulated/locations/{ZONE}/nodes/{wanted.name.node}"
    assert (created.verb, created.target) == ("create", path)
    assert finish(api, created).error is None

    view = api.get(wanted.name)
    assert (view.name, view.state, view.native_state) == (wanted.name, SliceState.READY, "READY")
    assert (view.accelerator_type, view.runtime_version, view.spot) == ("v5litepod-4", "v2-alpha-tpuv5-lite", False)
    assert dict(view.labels) == wanted.labels
    assert view.created_at == pytest.approx(time.time(), abs=600)
    assert view.hosts == ("127.0.0.1",)
    assert view in api.list("emulated", ZONE).rows

    finish(api, api.stop(wanted.name))
    stopped = api.get(wanted.name)
    assert (stopped.state, stopped.hosts) == (SliceState.STOPPED, ())
    for refused in (api.stop, api.workers):
        with pytest.raises(errors.WrongState, match="STOPPED"):
            refused(wanted.name)
    finish(api, api.start(wanted.name))

    deleted = api.delete(wanted.name)
    assert deleted is not None
    assert finish(api, deleted).error is None
    assert api.get(wanted.name) is None
    assert api.delete(wanted.name) is None
    listing = api.list("emulated", ZONE)
    assert listing.complete
    assert wanted.name not in [row.name for row in listing.rows]


def test_a_create_whose_reply_was_lost_is_found_among_the_operations(api: Cloud) -> None:
    wanted = request()
    lost = api.create(wanted)
    listing = api.operations("emulated", ZONE)
    assert listing.complete
    [found] = [row for row in listing.rows if row.target.endswith(f"/{wanted.name.node}")]
    assert (found.name, found.verb) == (lost.name, "create")
    finish(api, lost)
    with pytest.raises(errors.AlreadyExists, match="already exists"):
        api.create(wanted)
    delete(api, wanted.name)


def test_a_stockout_arrives_inside_the_operation_and_leaves_nothing(api: Cloud, shared_emulator: Emulator) -> None:
    wanted = request()
    with shared_emulator.settings(no_capacity=[f"{ZONE}/v5litepod-4"]):
        done = finish(api, api.create(wanted))
    assert isinstance(done.error, errors.CapacityError)
    assert done.error.message.startswith(f'There is no more capacity in the zone "{ZONE}"')
    assert "EID" in done.error.details["message"]
    assert until(lambda: api.get(wanted.name), wanted=lambda view: view is None) is None


def test_a_zone_that_does_not_answer_leaves_the_list_incomplete(api: Cloud, shared_emulator: Emulator) -> None:
    wanted = request()
    finish(api, api.create(wanted))
    with shared_emulator.settings(unreachable=[ZONE]):
        listing = api.list("emulated", ZONE)
        assert not listing.complete
        assert (listing.rows, listing.unreachable) == ((), (f"projects/emulated/locations/{ZONE}",))
    delete(api, wanted.name)


def test_a_list_says_what_time_the_server_has(api: Cloud) -> None:
    wanted = request("v5litepod-16")
    finish(api, api.create(wanted))
    listing = api.list("emulated", ZONE)
    assert wanted.name in [row.name for row in listing.rows]
    assert listing.server_now == pytest.approx(time.time(), abs=600)
    delete(api, wanted.name)


def test_what_a_zone_has_comes_over_all_pages(api: TpuApi) -> None:
    assert api.accelerator_types("emulated", ZONE).rows == catalog.types_in_zone(ZONE)


def test_each_worker_answers_on_its_own_port_with_the_published_key(api: Cloud) -> None:
    wanted = request("v5litepod-16")
    finish(api, api.create(wanted))
    workers = api.workers(wanted.name)
    assert [worker.index for worker in workers] == [0, 1, 2, 3]
    assert len({worker.port for worker in workers}) == len({worker.host_key for worker in workers}) == 4
    for worker in workers:
        assert worker.host_key.startswith("ssh-ed25519 AAAA")
        assert shown_key(worker.host, worker.port) == worker.host_key
    delete(api, wanted.name)


def shown_key(host: str, port: int) -> str:
    """The host key with which the worker really answers."""
    import paramiko

    with socket.create_connection((host, port), timeout=HANG_S) as connection:
        transport = paramiko.Transport(connection)
        transport.start_client(timeout=HANG_S)
        key = transport.get_remote_server_key()
        transport.close()
    return f"{key.get_name()} {key.get_base64()}"


def test_what_is_refused_is_refused_in_our_terms(api: Cloud) -> None:
    with pytest.raises(errors.BadRequest, match="could not be found in the zonal accelerator configurations") as caught:
        api.create(request("v4-8"))
    assert "another zone" in (caught.value.hint or "")
    with pytest.raises(errors.BadRequest, match="is not supported"):
        api.create(request(zone="asia-south9-a"))
    with pytest.raises(errors.AuthError, match="Permission denied on 'locations/asia-south9-a'") as denied:
        api.list("emulated", "asia-south9-a")
    assert "may not use that zone" in (denied.value.hint or "")
    with pytest.raises(errors.Vanished):
        api.stop(request().name)


QUIET_ZONE = "us-west4-a"  # where no other test leaves anything
FULL = [f"{QUIET_ZONE}/*"]


@pytest.fixture
def quick(shared_emulator: Emulator) -> Iterator[Emulator]:
    quickly = {"accept_s": 0, "queue_s": 0, "suspend_s": 0, "refuse_s": 0.2}
    with shared_emulator.settings(**quickly, no_capacity=[], provision_s=0):
        yield shared_emulator
        shared_emulator.patch_settings(no_capacity=[], provision_s=0)
        tpu_api = connect(EMULATED, shared_emulator.url, shared_emulator.token)
        for row in tpu_api.list("emulated", QUIET_ZONE, queued=True).rows:
            delete_queued(tpu_api, row.name)


@pytest.fixture
def tpu_api(quick: Emulator) -> TpuApi:
    return connect(EMULATED, quick.url, quick.trusted.token)


def wanted(accelerator_type: str = "v5litepod-4", *, valid_for_s: float = 600.0) -> SliceRequest:
    run = f"que{next(numbers):07}"
    name = SliceName("emulated", QUIET_ZONE, f"tpujob-aaaaaa-{run}", queued=True)
    labels = {"tpujob": "1", "tpujob-lease-id": run}
    return SliceRequest(
        name, accelerator_type, "v2-alpha-tpuv5-lite", labels=labels, queue=QueueTerms(valid_for_s, str(uuid.uuid4()))
    )


def seen(tpu_api: Cloud, name: SliceName, *states: SliceState) -> SliceView:
    view = until(lambda: tpu_api.get(name), wanted=lambda view: view is not None and view.state in states)
    assert view is not None
    return view


def delete_queued(tpu_api: Cloud, name: SliceName) -> None:
    """One that is refused, as of a request that is provisioning, is asked for again."""

    def asked() -> bool:
        operation = tpu_api.delete(name)
        return operation is None or finish(tpu_api, operation).error is None

    until(asked)


def bills(cloud: Emulator, name: SliceName) -> list[Any]:
    return [row for row in cloud.billing()["nodes"] if row["name"].endswith(f"/{name.zone}/nodes/{name.node}")]


def test_the_life_of_a_queued_slice(tpu_api: TpuApi, quick: Emulator) -> None:
    quick.patch_settings(no_capacity=FULL)
    request = wanted()
    name = request.name
    assert tpu_api.get(name) is None
    created = tpu_api.create(request)
    assert created.target.endswith(f"/queuedResources/{name.node}")
    assert tpu_api.create(request).name == created.name, "the same request, sent again, has no second effect"
    assert finish(tpu_api, created).error is None, "accepted is not there"

    waiting = seen(tpu_api, name, SliceState.QUEUED)
    assert (waiting.name, dict(waiting.labels), waiting.accelerator_type) == (name, request.labels, "v5litepod-4")
    assert tpu_api.list("emulated", QUIET_ZONE).rows == ()
    assert tpu_api.list("emulated", QUIET_ZONE, queued=True).rows == (waiting,)
    assert bills(quick, name) == []

    quick.patch_settings(no_capacity=[])
    ready = seen(tpu_api, name, SliceState.READY)
    assert ready.name == name and dict(ready.labels) == request.labels
    assert tpu_api.list("emulated", QUIET_ZONE).rows == (ready,)
    assert tpu_api.list("emulated", QUIET_ZONE, queued=True).rows == (ready,)

    deleted = tpu_api.delete(name)
    assert finish(tpu_api, deleted).error is None
    assert tpu_api.get(name) is None and tpu_api.delete(name) is None
    listing = tpu_api.list("emulated", QUIET_ZONE, queued=True)
    assert listing.complete and listing.rows == ()


def test_a_request_whose_time_is_over_failed_for_want_of_capacity(tpu_api: TpuApi, quick: Emulator) -> None:
    quick.patch_settings(no_capacity=FULL)
    request = wanted(valid_for_s=1.0)
    tpu_api.create(request)
    view = seen(tpu_api, request.name, SliceState.TOMBSTONE)
    assert view.native_state == "FAILED" and isinstance(view.error, CapacityError)
    quick.patch_settings(no_capacity=[])
    finish(tpu_api, tpu_api.delete(request.name))
    assert tpu_api.get(request.name) is None


def test_a_request_that_is_provisioning_takes_a_delete_and_fails_it(tpu_api: TpuApi, quick: Emulator) -> None:
    quick.patch_settings(provision_s=3600)
    request = wanted()
    tpu_api.create(request)
    seen(tpu_api, request.name, SliceState.CREATING)
    assert isinstance(finish(tpu_api, tpu_api.delete(request.name)).error, WrongState)
    quick.request("POST", f"/_emulator/nodes/{request.name.node}:put", {"state": "READY"})
    seen(tpu_api, request.name, SliceState.READY)
    assert finish(tpu_api, tpu_api.delete(request.name)).error is None
    assert tpu_api.get(request.name) is None


def lease_of(request: SliceRequest) -> Lease:
    now = time.time()
    fields = {"accelerator_type": request.accelerator_type, "spot": request.spot, "deadline": now + 600}
    return lease_on(request.name, now, **fields)


def test_a_watchdog_deletes_the_request_too(tpu_api: TpuApi, quick: Emulator) -> None:
    request = wanted()
    lease = lease_of(request)
    labels = claim_labels.labels(lease, lease.created_at, GOOGLE)
    script = startup_script(watchdog_config(lease, labels, GOOGLE.scaled(600), CLOUD_TPU.watched, idle_s=None))
    tpu_api.create(replace(request, labels=labels, metadata={"startup-script": script}))
    until(lambda: [row["until"] is not None for row in bills(quick, request.name)] == [True])  # no heartbeat comes
    until(lambda: tpu_api.get(request.name) is None)
    assert tpu_api.list("emulated", QUIET_ZONE, queued=True).rows == ()


def test_the_notice_of_preemption_reaches_a_job_in_time_for_its_checkpoint(
    tpu_api: TpuApi, quick: Emulator, tmp_path: Path
) -> None:
    request = replace(wanted(), spot=True)
    lease, key = lease_of(request), create_key(tmp_path / "key")
    labels = claim_labels.labels(lease, lease.created_at, GOOGLE)
    script = startup_script(
        watchdog_config(lease, labels, GOOGLE.scaled(60), CLOUD_TPU.watched, idle_s=None) | {"ttl_s": 3600}
    )
    metadata = {"startup-script": script, "ssh-keys": ssh_keys_metadata("tpujob", key.public_line)}
    tpu_api.create(replace(request, labels=labels, metadata=metadata))
    seen(tpu_api, request.name, SliceState.READY)
    known = tmp_path / "known_hosts"
    workers = tpu_api.workers(request.name)
    fleet = Fleet(workers, user="tpujob", key_path=key.private_path, known_hosts=known, on_notice=print)
    job = "trap 'echo saved > $TPUJOB_ARTIFACTS/checkpoint; exit 0' TERM; while :; do sleep 0.05; done"
    fleet.start(StartRequest("a1", "main", job, [{}]))
    quick.request("POST", f"/_emulator/nodes/{request.name.node}:preempt", {"notice_s": 3600})
    files = "tpujob/runs/a1/artifacts/checkpoint tpujob/runs/a1/main/exit.json"
    ended = f"until test -e {files.split()[1]}; do sleep 0.05; done; cat {files}"
    said = fleet.run(0, ["bash", "-c", ended]).stdout.decode()
    assert said.startswith("saved") and json.loads(said.partition("\n")[2])["stopped"] is True
    notice = until(
        lambda: tpu_api.guest_attributes(request.name)[0].get("tpujob/notice"), wanted=lambda text: text is not None
    )
    assert notice is not None and json.loads(notice)["preempted"] is True
    fleet.cancel()
    quick.request("POST", f"/_emulator/nodes/{request.name.node}:preempt")
    gone = seen(tpu_api, request.name, SliceState.TOMBSTONE)
    assert gone.native_state == "PREEMPTED"
    finish(tpu_api, tpu_api.delete(request.name))
    assert tpu_api.get(request.name) is None
