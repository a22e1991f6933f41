"""What a slice is created with: names, labels, nothing secret; and its startup-script, which a real bash runs.

As on an emulated VM, and, as far as that goes without one, as root on a real one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from orchestrator.capacity.capacity_request import CapacityRequest
from orchestrator.capacity.plan import make
from orchestrator.places.tpu.place import PLACE as CLOUD_TPU
from orchestrator.promise.lease import claim_labels
from orchestrator.promise.lease.access import AccessWish, Route, Via
from orchestrator.promise.lease.lease import Purpose, SliceName
from orchestrator.promise.lease.periods import GOOGLE
from orchestrator.promise.obtain.drafts import Draft, PlanDrafter, Site
from orchestrator.promise.obtain.startup_script import (
    startup_script,
    watchdog_config,
    watchdog_sha256,
    watchdog_source,
    with_claim,
)
from tests.cli_fixture import kill_all
from tests.fakes.leases import lease_on
from tests.waiting import HANG_S, until

NOW = 1_800_000_000.0
NAME = SliceName("my-project", "us-central1-a", "tpujob-aaaaaa-run0000001")
LEASE = lease_on(NAME, NOW, handle="mnist", cloud="google", accelerator_type="v5litepod-4", deadline=NOW + 7200.9)
API = {"url": "https://tpu.googleapis.com", "base": "/v2/", "state": "state", "booting": ["CREATING", "STARTING"]}


def config(**changes: Any) -> dict[str, Any]:
    return (
        watchdog_config(LEASE, claim_labels.labels(LEASE, NOW, GOOGLE), GOOGLE, CLOUD_TPU.watched, idle_s=None)
        | changes
    )


def test_the_configuration_has_the_claim_of_the_create_request() -> None:
    assert config() == {
        **{"api": API, "v": 1, "node": "projects/my-project/locations/us-central1-a/nodes/tpujob-aaaaaa-run0000001"},
        **{
            "lease_id": "run0000001", "mode": "run", "claimed_until": 1800003300, "deadline": 1800007200,
            "idle_s": None,
        },
        **{"spot": False, "heartbeats": True, "user": "tpujob"},
        **{"heartbeat_s": 60.0, "ttl_s": 900.0, "grace_s": 180.0, "poll_s": 60.0, "linger_s": 3600.0},
        **{"margin_s": 120.0, "stagger_s": 60.0},
    }  # fmt: skip
    held = replace(LEASE, purpose=Purpose.HOLD, hold_until=NOW + 3600)
    assert (
        watchdog_config(held, claim_labels.labels(held, NOW, GOOGLE), GOOGLE, CLOUD_TPU.watched, idle_s=60.0)["mode"]
        == "hold"
    )


def test_a_slice_of_up_starts_as_a_run_so_that_missing_heartbeats_count_until_it_is_held() -> None:
    brought = replace(LEASE, purpose=Purpose.HOLD)
    config = watchdog_config(brought, claim_labels.labels(brought, NOW, GOOGLE), GOOGLE, CLOUD_TPU.watched, idle_s=60.0)
    assert (config["mode"], config["heartbeats"]) == ("run", False)


def test_the_script_is_small_and_has_no_placeholder_left() -> None:
    script = startup_script(config())
    assert len(script) < 40 << 10
    assert len(watchdog_source().encode()) <= 32 << 10
    assert re.findall(r"@[A-Z0-9]+@", script) == []
    assert script == startup_script(config())
    assert script.isascii()  # no encoding can change it


def test_the_pin_is_the_hash_of_the_file_itself() -> None:
    from orchestrator.promise import watchdog

    assert watchdog_sha256() == hashlib.sha256(Path(watchdog.__file__).read_bytes()).hexdigest()
    assert watchdog_sha256() in startup_script(config())


class Machine:
    """A directory as an emulated VM's, and whatever was started for it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "run with space"
        self.directory.mkdir()
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        # Port 9 does not reply: this watchdog has no route, and waits.
        self.environment = {
            "PATH": path,
            "TPUJOB_WATCHDOG_DIR": str(self.directory),
            "GCE_METADATA_HOST": "127.0.0.1:9",
        }
        self.environment["TPUJOB_TPU_API"] = "http://127.0.0.1:9"

    def boot(self, script: str) -> subprocess.CompletedProcess[str]:
        argv = ["bash", "-c", script]
        return subprocess.run(argv, env=self.environment, capture_output=True, text=True, timeout=HANG_S, check=False)

    def processes(self, word: str = "-IS") -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                line = process.cmdline()
            except psutil.Error:
                continue
            if word in line and any(str(self.directory) in each for each in line) and "python" in line[0]:
                found.append(process)
        return found

    def end(self) -> None:
        """Repeat until none is found: a process that is just being started could be missed once."""
        while found := [process for process in psutil.process_iter() if self._is_mine(process)]:
            kill_all(found)
            time.sleep(0.05)

    def _is_mine(self, process: psutil.Process) -> bool:
        try:
            mine = process.environ().get("TPUJOB_WATCHDOG_DIR") == str(self.directory)
            return mine and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    made.end()
    time.sleep(0.05)
    made.end()


def until_one_runs(machine: Machine) -> psutil.Process:
    return until(machine.processes, "the watchdog")[0]


def test_a_boot_installs_the_very_bytes_and_starts_them_in_the_background(machine: Machine) -> None:
    done = machine.boot(startup_script(config()))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    process = until_one_runs(machine)
    assert (machine.directory / "watchdog.py").read_text() == watchdog_source()
    config_read = json.loads((machine.directory / "watchdog.json").read_text())
    assert config_read == config(sha256=watchdog_sha256())
    log = machine.directory / "watchdog.log"
    until(lambda: "worker failed" in log.read_text(), "the watchdog's first line")
    assert process.nice() > 0


def test_a_second_run_of_the_script_starts_no_second_watchdog(machine: Machine) -> None:
    machine.boot(startup_script(config()))
    first = until_one_runs(machine)
    log = machine.directory / "watchdog.log"
    until(lambda: "worker failed" in log.read_text(), "the watchdog's first line")
    machine.boot(startup_script(config()))
    until(lambda: [process.pid for process in machine.processes()] == [first.pid], "the end of the second one")


def test_values_with_shell_characters_reach_the_watchdog_unchanged(machine: Machine) -> None:
    special = config(node="projects/$(touch pwned)/`id`/\\'\"é\n$HOME")
    assert machine.boot(startup_script(special)).stderr == ""
    assert json.loads((machine.directory / "watchdog.json").read_text())["node"] == special["node"]


def test_a_modified_watchdog_is_not_started(machine: Machine) -> None:
    script = startup_script(config())
    changed = script.replace("SLOW_FACTOR = 5", "SLOW_FACTOR = 6")
    assert changed != script
    done = machine.boot(changed)
    assert done.returncode == 1
    assert "content does not match its hash" in done.stderr
    assert not (machine.directory / "watchdog.py").exists()
    assert machine.processes() == []


def test_without_a_python_there_is_a_message(machine: Machine, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("bash", "cat", "mkdir", "mv", "sha256sum", "chmod"):
        where = next(Path(p, tool) for p in os.environ["PATH"].split(":") if Path(p, tool).exists())
        (tools / tool).symlink_to(where)
    machine.environment["PATH"] = str(tools)
    done = machine.boot(startup_script(config()))
    assert done.returncode == 1
    assert "no python3" in done.stderr


def test_a_real_vm_gets_a_unit_that_is_always_restarted_and_never_killed_for_memory(tmp_path: Path) -> None:
    """With /run moved into a directory of the test, and systemctl, which only records how it is called."""
    run, tools = tmp_path / "run", tmp_path / "tools"
    (run / "systemd/system").mkdir(parents=True)
    tools.mkdir()
    (tools / "systemctl").write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/calls\n')
    (tools / "systemctl").chmod(0o755)
    script = startup_script(config())
    head, source, rest = script.partition(watchdog_source())
    moved = head.replace("/run/", f"{run}/") + source + rest.replace("/run/", f"{run}/")
    environment = {"PATH": f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for _ in range(2):
        subprocess.run(["bash", "-c", moved], env=environment, check=True, timeout=HANG_S)
    unit = (run / "systemd/system/tpujob-watchdog.service").read_text().splitlines()
    directory = run / "tpujob-watchdog"
    assert (
        f"ExecStart={Path(sys.executable).parent}/python3 -IS {directory}/watchdog.py {directory}/watchdog.json" in unit
    )
    assert {"Restart=always", "RestartSec=5", "OOMScoreAdjust=-1000", "StartLimitIntervalSec=0"} <= set(unit)
    assert (tmp_path / "calls").read_text().splitlines() == ["daemon-reload", "restart tpujob-watchdog.service"] * 2
    assert (run / "tpujob").stat().st_mode & 0o7777 == 0o1777
    assert (directory / "watchdog.py").read_text() == watchdog_source()


def test_with_claim_replaces_the_times_by_those_of_the_labels_and_the_user_by_the_one_that_os_login_named() -> None:
    labels = {"tpujob-mode": "run", "tpujob-claimed-until": "1800000320", "tpujob-deadline": "1800001200"}
    script = startup_script(watchdog_config(LEASE, labels, GOOGLE, CLOUD_TPU.watched, idle_s=None))
    later = {**labels, "tpujob-claimed-until": "1800086720", "tpujob-deadline": "1800087600"}
    logged_in = replace(LEASE, route=Route(user="ada_example_com"))
    wanted = startup_script(watchdog_config(logged_in, later, GOOGLE, CLOUD_TPU.watched, idle_s=None))
    assert with_claim(script, later, "ada_example_com") == wanted


def place(directory: Path, wish: AccessWish) -> Site:
    def of(lease_id: str) -> Path:
        found = directory / lease_id
        found.mkdir(exist_ok=True)
        return found

    return Site("google", "my-project", "0wner0", of, GOOGLE, time.time, CLOUD_TPU.watched, wish)


def drafted(directory: Path, wish: AccessWish = AccessWish(), *zones: str, **more: Any) -> tuple[Draft, ...]:  # noqa: B008
    plan = make([CapacityRequest("v5litepod-8", zones or ("us-central1-a",))])
    return PlanDrafter(plan, place(directory, wish), handle="mnist", **{"purpose": Purpose.RUN, **more}).make()


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
