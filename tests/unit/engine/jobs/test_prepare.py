"""The create request of a slice: names, labels, the watchdog, and nothing secret; the environment of a job."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from orchestrator.core.jobfile import keys
from orchestrator.core.lease.lease import Purpose
from orchestrator.core.lease.run_and_attempt import Attempt, RunRecord
from orchestrator.core.lease.timings import GOOGLE
from orchestrator.core.planning.capacity_request import CapacityRequest
from orchestrator.core.planning.plan import make
from orchestrator.engine.jobs.prepare import phases, survey
from orchestrator.engine.provision import startup_script
from orchestrator.engine.provision.drafts import Place, PlanDrafter


def place(directory: Path) -> Place:
    def of(lease_id: str) -> Path:
        found = directory / lease_id
        found.mkdir(exist_ok=True)
        return found

    return Place("google", "my-project", "0wner0", of, GOOGLE, time.time)


def test_every_create_request_contains_the_watchdog_pinned_by_its_hash(tmp_path: Path) -> None:
    plan = make([CapacityRequest("v5litepod-8", ("us-central1",))])
    for lease, request in PlanDrafter(plan, place(tmp_path), handle="mnist", purpose=Purpose.RUN).make():
        script = request.metadata["startup-script"]
        assert startup_script.watchdog_source() in script
        assert startup_script.watchdog_sha256() in script
        assert lease.name.node in script and lease.id in script


def test_the_watchdog_gets_what_the_labels_say_and_how_long_results_wait(tmp_path: Path) -> None:
    plan = make([CapacityRequest("v5litepod-8", ("us-central1-a",))])
    ((lease, request),) = PlanDrafter(
        plan, place(tmp_path), handle="mnist", purpose=Purpose.HOLD, linger_s=90.0, idle_s=1800.0
    ).make()
    script = request.metadata["startup-script"]
    start = script.index('{\n "v": 1')
    told = json.JSONDecoder().raw_decode(script[start:])[0]
    assert (told["mode"], told["linger_s"], told["idle_s"], told["lease_id"]) == ("run", 90.0, 1800.0, lease.id)
    assert str(told["deadline"]) == request.labels["tpujob-deadline"]
    assert str(told["claimed_until"]) == request.labels["tpujob-claimed-until"]


def test_two_slices_never_have_one_name(tmp_path: Path) -> None:
    plan = make([CapacityRequest("v5litepod-8", ("us-central1-a", "us-west4-a"))])
    names = [
        lease.name.node
        for _ in range(20)
        for lease, _ in PlanDrafter(plan, place(tmp_path), handle="mnist", purpose=Purpose.RUN).make()
    ]
    assert len(set(names)) == len(names) == 40


def test_a_job_finds_the_addresses_of_all_hosts_and_how_the_chips_are_wired(tmp_path: Path) -> None:
    plan = make([CapacityRequest("v5litepod-16", ("us-central1-a",))])
    ((lease, _),) = PlanDrafter(plan, place(tmp_path), handle="mnist", purpose=Purpose.RUN).make()
    run = RunRecord("r1", "mnist", "job.yaml", "google", 0.0, str(tmp_path))
    (main,) = phases(
        keys.load("command: 'true'\n", path="job.yaml"),
        run,
        shipment=None,
        env={},
        emulation=None,
        job_path=tmp_path / "job.yaml",
    )
    hosts = ("10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5")
    seen = main.request(Attempt("r1-1", "r1"), lease, hosts, "10.0.0.2:8476").env_by_worker
    assert [variables["TPUJOB_WORKER"] for variables in seen] == ["0", "1", "2", "3"]
    assert {variables["TPUJOB_HOSTS"] for variables in seen} == {"10.0.0.2,10.0.0.3,10.0.0.4,10.0.0.5"}
    assert {(variables["TPUJOB_WORKERS"], variables["TPUJOB_TOPOLOGY"]) for variables in seen} == {("4", "4x4")}


def test_no_private_key_is_in_the_request(tmp_path: Path) -> None:
    plan = make([CapacityRequest("v5litepod-8", ("us-central1-a",))])
    ((lease, request),) = PlanDrafter(plan, place(tmp_path), handle="mnist", purpose=Purpose.RUN).make()
    private = (tmp_path / lease.id / "id_ed25519").read_text()
    assert "PRIVATE KEY" in private
    assert not any(line in json.dumps(dict(request.metadata)) for line in private.splitlines() if len(line) > 40)


@pytest.mark.parametrize(
    ("train", "emulated", "shipped"),
    [
        ("{}", False, False),
        ("{}", True, True),
        ("{fallback: sample}", False, True),
        ("{fallback: synthetic}", False, True),
        ("{dataset: fashion-mnist, fallback: synthetic}", True, False),
        ("{entry: 'my:main'}", True, False),
    ],
)
def test_the_sample_of_mnist_is_shipped_where_the_training_may_fall_back_on_it(
    tmp_path: Path, train: str, emulated: bool, shipped: bool
) -> None:
    found = survey(keys.load(f"train: {train}\n", path="job.yaml"), tmp_path / "job.yaml", emulated=emulated)
    assert found is not None
    names = set(found.entries)
    assert "payload/data/sources.py" in names and "train.json" in names
    samples = {name for name in names if "/mnist_sample/" in name}
    assert len(samples) == (5 if shipped else 0), "four files and their license"
