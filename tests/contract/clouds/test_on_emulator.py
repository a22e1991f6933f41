"""The client and the emulator, which share no code: the life of a slice through `core.lease.cloud_api.Cloud`."""

from __future__ import annotations

import socket
import time
from itertools import count

import pytest

from orchestrator import catalog, errors
from orchestrator.core.lease.cloud_api import Cloud, SliceName, SliceRequest, SliceState
from orchestrator.places.tpu.api.calls import ApiCalls
from orchestrator.places.tpu.api.connect import connect, connect_light
from orchestrator.settings import Target
from tests.contract.operations import finish
from tests.emulator_fixture import Emulator
from tests.waiting import HANG_S, until

EMULATED = Target("emulated", "emulated")
ZONE = "us-central1-a"
numbers = count(1)


@pytest.fixture
def api(shared_emulator: Emulator) -> Cloud:
    return connect(EMULATED, shared_emulator.url, shared_emulator.token)


@pytest.fixture(params=[connect, connect_light])
def asking(request: pytest.FixtureRequest, shared_emulator: Emulator) -> ApiCalls:
    """Both clients, for what both can ask."""
    return request.param(EMULATED, shared_emulator.url, shared_emulator.token)


def request(accelerator_type: str = "v5litepod-4", zone: str = ZONE, project: str = "emulated") -> SliceRequest:
    """A new name each time."""
    name = SliceName(project, zone, f"tpujob-client-{next(numbers)}")
    labels = {"tpujob": "1", "tpujob-lease-id": name.node}
    return SliceRequest(
        name, accelerator_type, "v2-alpha-tpuv5-lite", labels=labels, metadata={"some-key": "some value"}
    )


def delete(api: Cloud | ApiCalls, name: SliceName) -> None:
    operation = api.delete(name)
    if operation is not None:
        finish(api, operation)


def test_the_life_of_a_slice(api: Cloud, asking: ApiCalls) -> None:
    wanted = request()
    assert asking.get(wanted.name) is None
    created = api.create(wanted)
    path = f"projects/emulated/locations/{ZONE}/nodes/{wanted.name.node}"
    assert (created.verb, created.target) == ("create", path)
    assert finish(asking, created).error is None

    view = asking.get(wanted.name)
    assert view is not None
    assert (view.name, view.state, view.native_state) == (wanted.name, SliceState.READY, "READY")
    assert (view.accelerator_type, view.runtime_version, view.spot) == ("v5litepod-4", "v2-alpha-tpuv5-lite", False)
    assert dict(view.labels) == wanted.labels
    assert view.created_at == pytest.approx(time.time(), abs=600)
    assert view.hosts == ("127.0.0.1",)
    assert view in asking.list("emulated", ZONE).rows

    finish(asking, api.stop(wanted.name))
    stopped = asking.get(wanted.name)
    assert stopped is not None
    assert (stopped.state, stopped.hosts) == (SliceState.STOPPED, ())
    for refused in (api.stop, api.workers):
        with pytest.raises(errors.WrongState, match="STOPPED"):
            refused(wanted.name)
    finish(asking, api.start(wanted.name))

    deleted = asking.delete(wanted.name)
    assert deleted is not None
    assert finish(asking, deleted).error is None
    assert asking.get(wanted.name) is None
    assert asking.delete(wanted.name) is None
    listing = asking.list("emulated", ZONE)
    assert listing.complete
    assert wanted.name not in [row.name for row in listing.rows]


def test_the_body_of_a_create_is_understood_as_it_was_meant(api: Cloud, shared_emulator: Emulator) -> None:
    wanted = SliceRequest(
        request().name,
        "v5litepod-4",
        "v2-alpha-tpuv5-lite",
        spot=True,
        metadata={"ssh-keys": "me:ssh-ed25519 AAAA me"},
        network="my-network",
        service_account="vm@emulated.iam.gserviceaccount.com",
    )
    finish(api, api.create(wanted))
    path = f"/v2/projects/emulated/locations/{ZONE}/nodes/{wanted.name.node}"
    node = shared_emulator.request("GET", path)
    assert node["schedulingConfig"]["spot"] is True
    assert node["metadata"] == {"ssh-keys": "me:ssh-ed25519 AAAA me"}
    assert node["networkConfig"]["enableExternalIps"] is True
    assert node["networkConfig"]["network"].endswith("/my-network")
    assert node["serviceAccount"] == {
        "email": "vm@emulated.iam.gserviceaccount.com",
        "scope": ["https://www.googleapis.com/auth/cloud-platform"],
    }
    view = api.get(wanted.name)
    assert view is not None
    assert view.spot
    delete(api, wanted.name)


def test_a_create_whose_reply_was_lost_is_found_among_the_operations(api: Cloud, asking: ApiCalls) -> None:
    wanted = request()
    lost = api.create(wanted)
    listing = asking.operations("emulated", ZONE)
    assert listing.complete
    [found] = [row for row in listing.rows if row.target.endswith(f"/{wanted.name.node}")]
    assert (found.name, found.verb) == (lost.name, "create")
    finish(asking, lost)
    with pytest.raises(errors.AlreadyExists, match="already exists"):
        api.create(wanted)
    delete(asking, wanted.name)


def test_a_stockout_arrives_inside_the_operation_and_leaves_nothing(api: Cloud, shared_emulator: Emulator) -> None:
    wanted = request()
    with shared_emulator.settings(no_capacity=[f"{ZONE}/v5litepod-4"]):
        done = finish(api, api.create(wanted))
    assert isinstance(done.error, errors.CapacityError)
    assert done.error.message.startswith(f'There is no more capacity in the zone "{ZONE}"')
    assert "EID" in done.error.details["message"]
    assert until(lambda: api.get(wanted.name), wanted=lambda view: view is None) is None


def test_a_zone_that_does_not_answer_leaves_the_list_incomplete(
    api: Cloud, asking: ApiCalls, shared_emulator: Emulator
) -> None:
    wanted = request()
    finish(api, api.create(wanted))
    with shared_emulator.settings(unreachable=[ZONE]):
        listing = asking.list("emulated", ZONE)
        assert not listing.complete
        assert (listing.rows, listing.unreachable) == ((), (f"projects/emulated/locations/{ZONE}",))
    delete(api, wanted.name)


def test_both_clients_see_one_slice_alike_and_say_what_time_the_server_has(
    api: Cloud, shared_emulator: Emulator
) -> None:
    wanted = request("v5litepod-16")
    finish(api, api.create(wanted))
    light = connect_light(EMULATED, shared_emulator.url, shared_emulator.token)
    assert light.get(wanted.name) == api.get(wanted.name)
    assert light.guest_attributes(wanted.name) == api.guest_attributes(wanted.name)
    assert light.zones("emulated") == api.zones("emulated")
    assert light.capabilities == api.capabilities
    listing = light.list("emulated", ZONE)
    assert wanted.name in [row.name for row in listing.rows]
    assert listing.server_now == pytest.approx(time.time(), abs=600)
    delete(api, wanted.name)


def test_both_clients_are_told_what_a_zone_has_over_all_pages(asking: ApiCalls) -> None:
    assert asking.accelerator_types("emulated", ZONE).rows == catalog.types_in_zone(ZONE)


def test_each_worker_answers_on_its_own_port_with_the_published_key(api: Cloud) -> None:
    wanted = request("v5litepod-16")
    finish(api, api.create(wanted))
    workers = api.workers(wanted.name)
    assert [worker.index for worker in workers] == [0, 1, 2, 3]
    assert len({worker.port for worker in workers}) == len({worker.host_key for worker in workers}) == 4
    for worker in workers:
        assert worker.host_key is not None
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
