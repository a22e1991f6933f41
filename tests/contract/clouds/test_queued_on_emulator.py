"""Queued slices, client against emulator: waiting, coming alive, failing, and going with all that belongs to them."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.lease import claim_labels
from orchestrator.core.lease.cloud_api import QueueTerms, SliceName, SliceRequest, SliceState, SliceView
from orchestrator.core.lease.lease import Lease
from orchestrator.core.lease.timings import GOOGLE
from orchestrator.engine.provision.startup_script import startup_script, watchdog_config
from orchestrator.errors import AuthError, BadRequest, CapacityError, WrongState
from orchestrator.places.tpu.api.calls import ApiCalls
from orchestrator.places.tpu.api.client import TpuApi
from orchestrator.places.tpu.api.connect import connect, connect_light
from orchestrator.places.tpu.place import PLACE as CLOUD_TPU
from orchestrator.remote.fleet.fleet import Fleet, StartRequest
from orchestrator.remote.ssh.keys import create_key, ssh_keys_metadata
from orchestrator.settings import Target
from tests.contract.operations import finish
from tests.emulator_fixture import Emulator
from tests.leases import lease_on
from tests.waiting import until

EMULATED = Target("emulated", "emulated")
ZONE = "us-west4-a"  # where no other test leaves anything
FULL = [f"{ZONE}/*"]
numbers = count(1)


@pytest.fixture
def quick(shared_emulator: Emulator) -> Iterator[Emulator]:
    quickly = {"accept_s": 0, "queue_s": 0, "suspend_s": 0, "refuse_s": 0.2}
    with shared_emulator.settings(**quickly, no_capacity=[], provision_s=0):
        yield shared_emulator
        shared_emulator.patch_settings(no_capacity=[], provision_s=0)
        api = connect(EMULATED, shared_emulator.url, shared_emulator.token)
        for row in api.list("emulated", ZONE, queued=True).rows:
            delete(api, row.name)


@pytest.fixture
def api(quick: Emulator) -> TpuApi:
    return connect(EMULATED, quick.url, quick.trusted.token)


@pytest.fixture
def light(quick: Emulator) -> ApiCalls:
    return connect_light(EMULATED, quick.url, quick.token)


def wanted(accelerator_type: str = "v5litepod-4", *, valid_for_s: float = 600.0) -> SliceRequest:
    run = f"que{next(numbers):07}"
    name = SliceName("emulated", ZONE, f"tpujob-aaaaaa-{run}", queued=True)
    labels = {"tpujob": "1", "tpujob-lease-id": run}
    return SliceRequest(
        name, accelerator_type, "v2-alpha-tpuv5-lite", labels=labels, queue=QueueTerms(valid_for_s, str(uuid.uuid4()))
    )


def seen(api: ApiCalls, name: SliceName, *states: SliceState) -> SliceView:
    view = until(lambda: api.get(name), wanted=lambda view: view is not None and view.state in states)
    assert view is not None
    return view


def delete(api: ApiCalls, name: SliceName) -> None:
    """One that is refused, as of a request that is provisioning, is asked for again."""

    def asked() -> bool:
        operation = api.delete(name)
        return operation is None or finish(api, operation).error is None

    until(asked)


def bills(cloud: Emulator, name: SliceName) -> list[Any]:
    return [row for row in cloud.billing()["nodes"] if row["name"].endswith(f"/{name.zone}/nodes/{name.node}")]


def test_the_life_of_a_queued_slice(api: TpuApi, light: ApiCalls, quick: Emulator) -> None:
    quick.patch_settings(no_capacity=FULL)
    request = wanted()
    name = request.name
    assert api.get(name) is None and light.get(name) is None
    created = api.create(request)
    assert created.target.endswith(f"/queuedResources/{name.node}")
    assert api.create(request).name == created.name, "the same request, sent again, has no second effect"
    assert finish(light, created).error is None, "accepted is not there"

    waiting = seen(light, name, SliceState.QUEUED)
    assert (waiting.name, dict(waiting.labels), waiting.accelerator_type) == (name, request.labels, "v5litepod-4")
    for asking in (api, light):
        assert asking.get(name) == waiting
        assert asking.list("emulated", ZONE).rows == ()
        assert asking.list("emulated", ZONE, queued=True).rows == (waiting,)
    assert bills(quick, name) == []

    quick.patch_settings(no_capacity=[])
    ready = seen(api, name, SliceState.READY)
    assert ready.name == name and dict(ready.labels) == request.labels
    for asking in (api, light):
        assert asking.list("emulated", ZONE).rows == asking.list("emulated", ZONE, queued=True).rows == (ready,)

    deleted = light.delete(name)
    assert finish(light, deleted).error is None
    for asking in (api, light):
        assert asking.get(name) is None and asking.delete(name) is None
        listing = asking.list("emulated", ZONE, queued=True)
        assert listing.complete and listing.rows == ()


def test_a_request_whose_time_is_over_failed_for_want_of_capacity(api: TpuApi, quick: Emulator) -> None:
    quick.patch_settings(no_capacity=FULL)
    request = wanted(valid_for_s=1.0)
    api.create(request)
    view = seen(api, request.name, SliceState.TOMBSTONE)
    assert view.native_state == "FAILED" and isinstance(view.error, CapacityError)
    quick.patch_settings(no_capacity=[])
    finish(api, api.delete(request.name))
    assert api.get(request.name) is None


def test_a_request_that_is_provisioning_takes_a_delete_and_fails_it(api: TpuApi, quick: Emulator) -> None:
    quick.patch_settings(provision_s=3600)
    request = wanted()
    api.create(request)
    seen(api, request.name, SliceState.CREATING)
    assert isinstance(finish(api, api.delete(request.name)).error, WrongState)
    quick.request("POST", f"/_emulator/nodes/{request.name.node}:put", {"state": "READY"})
    seen(api, request.name, SliceState.READY)
    assert finish(api, api.delete(request.name)).error is None
    assert api.get(request.name) is None


def test_each_way_of_provisioning_is_understood(api: TpuApi, quick: Emulator) -> None:
    quick.patch_settings(no_capacity=FULL)
    plain = wanted()
    path = f"/v2alpha1/projects/emulated/locations/{ZONE}/queuedResources/{plain.name.node}"
    assert plain.queue is not None
    ways = {
        "spot": (replace(plain, spot=True), {"spot": {}}),
        "reserved": (
            replace(plain, reserved=True),
            {"reservationName": f"projects/emulated/locations/{ZONE}/reservations/-"},
        ),
        "flex-start": (
            replace(plain, queue=replace(plain.queue, flex_start_s=7200.0)),
            {"provisioningModel": "FLEX_START", "runDuration": {"maxRunDuration": "7200s"}},
        ),
    }
    for way, (request, said) in ways.items():
        queue = replace(request.queue or plain.queue, request_id=str(uuid.uuid4()))
        api.create(replace(request, queue=queue))
        view = seen(api, request.name, SliceState.QUEUED, SliceState.READY)  # a reservation has room of its own
        assert view.spot is (way == "spot")
        assert said.items() <= quick.request("GET", path).items(), way
        finish(api, api.delete(request.name))


def test_what_is_refused_is_refused_in_our_terms(api: TpuApi) -> None:
    with pytest.raises(BadRequest, match="could not be found in the zonal accelerator configurations"):
        api.create(wanted("v4-8"))
    with pytest.raises(AuthError):
        api.list("emulated", "asia-south9-a", queued=True)


def lease_of(request: SliceRequest) -> Lease:
    now = time.time()
    fields = {"accelerator_type": request.accelerator_type, "spot": request.spot, "deadline": now + 600}
    return lease_on(request.name, now, **fields)


def test_a_watchdog_deletes_the_request_too(api: TpuApi, light: ApiCalls, quick: Emulator) -> None:
    request = wanted()
    lease = lease_of(request)
    labels = claim_labels.labels(lease, lease.created_at, GOOGLE)
    script = startup_script(watchdog_config(lease, labels, GOOGLE.scaled(600), CLOUD_TPU.watched, idle_s=None))
    api.create(replace(request, labels=labels, metadata={"startup-script": script}))
    until(lambda: [row["until"] is not None for row in bills(quick, request.name)] == [True])  # no heartbeat comes
    until(lambda: light.get(request.name) is None)
    assert light.list("emulated", ZONE, queued=True).rows == ()


def test_the_notice_of_preemption_reaches_a_job_in_time_for_its_checkpoint(
    api: TpuApi, quick: Emulator, tmp_path: Path
) -> None:
    request = replace(wanted(), spot=True)
    lease, key = lease_of(request), create_key(tmp_path / "key")
    labels = claim_labels.labels(lease, lease.created_at, GOOGLE)
    script = startup_script(
        watchdog_config(lease, labels, GOOGLE.scaled(60), CLOUD_TPU.watched, idle_s=None) | {"ttl_s": 3600}
    )
    metadata = {"startup-script": script, "ssh-keys": ssh_keys_metadata("tpujob", key.public_line)}
    api.create(replace(request, labels=labels, metadata=metadata))
    seen(api, request.name, SliceState.READY)
    known = tmp_path / "known_hosts"
    workers = api.workers(request.name)
    fleet = Fleet(workers, user="tpujob", key_path=key.private_path, known_hosts=known, on_notice=print)
    job = "trap 'echo saved > $TPUJOB_ARTIFACTS/checkpoint; exit 0' TERM; while :; do sleep 0.05; done"
    fleet.start(StartRequest("a1", "main", job, [{}]))
    quick.request("POST", f"/_emulator/nodes/{request.name.node}:preempt", {"notice_s": 3600})
    files = "tpujob/runs/a1/artifacts/checkpoint tpujob/runs/a1/main/exit.json"
    ended = f"until test -e {files.split()[1]}; do sleep 0.05; done; cat {files}"
    said = fleet.run(0, ["bash", "-c", ended]).stdout.decode()
    assert said.startswith("saved") and json.loads(said.partition("\n")[2])["stopped"] is True
    notice = until(
        lambda: api.guest_attributes(request.name)[0].get("tpujob/notice"), wanted=lambda text: text is not None
    )
    assert notice is not None and json.loads(notice)["preempted"] is True
    fleet.cancel()
    quick.request("POST", f"/_emulator/nodes/{request.name.node}:preempt")
    gone = seen(api, request.name, SliceState.TOMBSTONE)
    assert gone.native_state == "PREEMPTED"
    finish(api, api.delete(request.name))
    assert api.get(request.name) is None
