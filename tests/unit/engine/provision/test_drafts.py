"""The create request of a slice: names, labels, the watchdog, and nothing secret."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from orchestrator.core.lease.access import AccessWish, Route, Via
from orchestrator.core.lease.cloud_api import GOOGLE
from orchestrator.core.lease.lease import Purpose
from orchestrator.core.planning.capacity_request import CapacityRequest
from orchestrator.core.planning.plan import make
from orchestrator.engine.provision import startup_script
from orchestrator.engine.provision.drafts import Draft, PlanDrafter, Site
from orchestrator.places.tpu.place import PLACE as CLOUD_TPU


def place(directory: Path, wish: AccessWish) -> Site:
    def of(lease_id: str) -> Path:
        found = directory / lease_id
        found.mkdir(exist_ok=True)
        return found

    return Site("google", "my-project", "0wner0", of, GOOGLE, time.time, CLOUD_TPU.watched, wish)


def drafted(directory: Path, wish: AccessWish = AccessWish(), *zones: str, **more: Any) -> tuple[Draft, ...]:  # noqa: B008
    plan = make([CapacityRequest("v5litepod-8", zones or ("us-central1-a",))])
    return PlanDrafter(plan, place(directory, wish), handle="mnist", **{"purpose": Purpose.RUN, **more}).make()


def test_every_create_request_contains_the_watchdog_pinned_by_its_hash(tmp_path: Path) -> None:
    for lease, request in drafted(tmp_path, AccessWish(), "us-central1"):
        script = request.metadata["startup-script"]
        assert startup_script.watchdog_source() in script
        assert startup_script.watchdog_sha256() in script
        assert lease.name.node in script and lease.id in script


def test_the_watchdog_gets_what_the_labels_say_and_how_long_results_wait(tmp_path: Path) -> None:
    ((lease, request),) = drafted(tmp_path, purpose=Purpose.HOLD, linger_s=90.0, idle_s=1800.0)
    script = request.metadata["startup-script"]
    start = script.index('{\n "v": 1')
    told = json.JSONDecoder().raw_decode(script[start:])[0]
    assert (told["mode"], told["linger_s"], told["idle_s"], told["lease_id"]) == ("run", 90.0, 1800.0, lease.id)
    assert str(told["deadline"]) == request.labels["tpujob-deadline"]
    assert str(told["claimed_until"]) == request.labels["tpujob-claimed-until"]


def test_two_slices_never_have_one_name(tmp_path: Path) -> None:
    zones = ("us-central1-a", "us-west4-a")
    names = [lease.name.node for _ in range(20) for lease, _ in drafted(tmp_path, AccessWish(), *zones)]
    assert len(set(names)) == len(names) == 40


def test_no_private_key_is_in_the_request(tmp_path: Path) -> None:
    ((lease, request),) = drafted(tmp_path)
    private = (tmp_path / lease.id / "id_ed25519").read_text()
    assert "PRIVATE KEY" in private
    assert not any(line in json.dumps(dict(request.metadata)) for line in private.splitlines() if len(line) > 40)


def test_a_slice_without_external_addresses_is_requested_as_such_and_its_lease_says_how_to_reach_it(
    tmp_path: Path,
) -> None:
    wish = AccessWish(via="iap", network="shared", subnetwork="small", tags=("ssh", "tpu"), secure_boot=True)
    ((lease, request),) = drafted(tmp_path, wish)
    assert lease.route == Route(Via.IAP)
    assert (request.external_ips, request.network, request.subnetwork) == (False, "shared", "small")
    assert request.tags == ("ssh", "tpu") and request.secure_boot
    assert request.metadata["enable-oslogin"] == "FALSE" and request.metadata["ssh-keys"].startswith("tpujob:ssh-")


def test_with_os_login_no_key_is_in_the_metadata(tmp_path: Path) -> None:
    ((lease, request),) = drafted(tmp_path, AccessWish(os_login="on"))
    assert lease.route == Route(os_login=True, user="")
    assert request.metadata["enable-oslogin"] == "TRUE" and "ssh-keys" not in request.metadata
