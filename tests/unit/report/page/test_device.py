"""What a page says of the device, and why it says nothing where there is nothing."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.lease.run_and_attempt import LOCAL
from orchestrator.report.page import device
from tests.unit.report.page.test_page import text_of
from tests.unit.report.page.world import World, plain_run

GB = 10**9
SAMPLE = {
    "every_s": 10,
    "hbm_used_bytes": [3 * GB, 4 * GB],
    "hbm_total_bytes": [16 * GB] * 2,
    "duty_cycle_percent": [20.0, 40.0],
}


def trained(directory: Path, *, metrics: dict[str, Any] | None = None, **said: Any) -> World:
    world = plain_run(directory, spec={"train": {}, **said.pop("spec", {})}, **said)
    world.write("worker0/artifacts/metrics.json", json.dumps({"images_per_s": 8000.0, **(metrics or {})}))
    return world


def sampled(world: World, *lines: Any) -> World:
    world.write("worker0/artifacts/tpu-metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    return world


def said_of(world: World) -> dict[str, str]:
    return {
        fact.label: f"{'not available: ' if fact.is_absent else ''}{fact.text}{fact.command}"
        for fact in device.facts(world.data())
    }


def test_the_device_is_described_by_its_samples(tmp_path: Path) -> None:
    said = said_of(sampled(trained(tmp_path / "run"), {"schema": 1}, SAMPLE, SAMPLE))
    assert said["Throughput per chip"] == "1,000 of 8,000 images/s, on v5litepod-8"
    assert said["Waited for data"] == "0.5 s, 12.6 % of the training"
    assert said["HBM"] == "peak 4.0 of 16.0 GB (25 %), of one chip"
    assert said["Duty cycle"] == "mean 30.0 %, of 2 chips in 2 samples"


@pytest.mark.parametrize("last", ["idle", "used"])
def test_of_what_a_worker_said_of_its_chips_the_last_counts(tmp_path: Path, last: str) -> None:
    said = [{"chips": {"worker": 0, "workers": 1, "use": use, "text": use}} for use in ("idle", last)]
    use = said_of(sampled(trained(tmp_path / "run"), *said)).get("TPU use", "")
    assert use.startswith("worker0 (1 of 1): idle; the run: ") if last == "idle" else not use


def test_the_page_has_them_under_speed_and_the_throughput_of_a_chip_at_its_top(tmp_path: Path) -> None:
    text = text_of(sampled(trained(tmp_path / "run"), SAMPLE).page())
    assert "Throughput 8,000 images/s, 1,000 per chip" in text
    assert text.index(" Speed ") < text.index("peak 4.0 of 16.0 GB (25 %)") < text.index("Duty cycle mean 30.0 %")


@pytest.mark.parametrize(("lines", "why"), [
    (None, "no tpu-metrics.jsonl came from the workers"),
    ([{"schema": 1}], "libtpu reported nothing: no program was loaded, or for less than 10 s"),
    ([{"absent": "the job's python3 has no libtpu.sdk"}], "the job's python3 has no libtpu.sdk"),
])  # fmt: skip
def test_what_a_tpu_did_not_report_is_absent_with_the_reason(tmp_path: Path, lines: Any, why: str) -> None:
    world = trained(tmp_path / "run")
    said = said_of(world if lines is None else sampled(world, *lines))
    assert (said["HBM"], said["Duty cycle"]) == (f"not available: {why}", f"not available: {why}")


def test_an_emulated_tpu_has_neither_and_so_has_a_run_that_turned_it_off(tmp_path: Path) -> None:
    said = said_of(trained(tmp_path / "emulated", cloud="emulated"))
    assert said["HBM"] == "not available: emulated (XLA:CPU has no HBM)"
    assert said["Throughput per chip"] == "not available: emulated (processes on the CPU stand for the chips)"
    off = said_of(trained(tmp_path / "off", spec={"tpu_metrics": False}))
    assert off["Duty cycle"] == "not available: turned off by tpu_metrics: false"


def test_a_training_on_a_gpu_has_the_memory_that_it_measured_itself(tmp_path: Path) -> None:
    said = said_of(trained(tmp_path / "run", cloud=LOCAL, metrics={"peak_device_bytes": 5 * GB}))
    assert (said["Device memory"], said["Duty cycle"]) == ("peak 5.0 GB", "not available: no TPU")


def test_a_run_that_never_had_a_slice_says_nothing_of_a_device(tmp_path: Path) -> None:
    world = World(tmp_path / "run")
    world.end(world.begin(), None)
    assert device.facts(world.data()) == []


# -- profiles ------------------------------------------------------------------------------------------------------------


def test_a_trace_comes_with_the_command_that_opens_it_whoever_wrote_it(tmp_path: Path) -> None:
    world = trained(tmp_path / "my run", metrics={"profile": {"first_step": 101, "last_step": 105, "problem": None}})
    world.write("worker0/artifacts/profile/plugins/profile/2026_11_23/vm.xplane.pb", b"1")
    world.write("worker0/artifacts/profile/plugins/profile/2026_11_23/vm.trace.json.gz", b"1")
    command = f"xprof --logdir {shlex.quote(f'{tmp_path}/my run/worker0/artifacts/profile')}"
    assert command.endswith("'")
    assert said_of(world)["Profile"] == f"steps 101 to 105; open it with XProf (pip install xprof): {command}"
    assert command in text_of(world.page())
    own = plain_run(tmp_path / "own")
    own.write("worker0/artifacts/traces/plugins/profile/1/host.xplane.pb", b"1")
    assert said_of(own)["Profile"].endswith(f"xprof --logdir {shlex.quote(f'{tmp_path}/own/worker0/artifacts/traces')}")


def test_a_trace_of_pytorch_opens_in_perfetto(tmp_path: Path) -> None:
    world = trained(tmp_path / "run")
    world.write("worker0/artifacts/profile/vm.trace.json.gz", b"1")
    assert said_of(world)["Profile"] == "worker0/artifacts/profile/vm.trace.json.gz opens in Perfetto"


def test_a_profile_that_was_not_written_says_why(tmp_path: Path) -> None:
    problem = "the training ended after step 20, and `start` is 100"
    said = said_of(trained(tmp_path / "a", metrics={"profile": {"size_bytes": 0, "problem": problem}}))
    assert said["Profile"] == f"not available: {problem}"
    assert said_of(trained(tmp_path / "b"))["Profile"] == "not available: train.profile asks for none"
    hostile = said_of(trained(tmp_path / "c", metrics={"profile": {"problem": ["\x1b"], "first_step": "x"}}))
    assert hostile["Profile"] == "not available: train.profile asks for none"


def test_the_histogram_says_that_traced_steps_are_left_out(tmp_path: Path) -> None:
    world = trained(tmp_path / "run")
    world.timing(
        [{"epoch": 1, "step": n, "t_s": n, "dt_s": 1.0, **({"profile": True} if n > 8 else {})} for n in range(1, 11)]
    )
    text = text_of(world.page())
    assert "8 steps: " in text and "2 steps that a profiler traced are left out." in text
