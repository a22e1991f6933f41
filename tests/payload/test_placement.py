"""How a job is started: from environment variables to processes, and an entry in a plain process (`backend: none`)."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from payload.config import Config, EmulatedConfig
from payload.failures import BadConfig
from payload.launch.placement import HostPlace, choose_backend, look, place, share
from tests import ROOT
from tests.waiting import HANG_S

NOTHING, TPU, GPUS = HostPlace(), HostPlace(tpu_chips=8, tpu="v5e"), HostPlace(gpus=4)


def test_without_any_variable_one_process_trains_on_the_cpu() -> None:
    config, placement = place(Config(), {}, host=NOTHING, backend="xla")
    assert config == Config()
    assert (placement.device, placement.processes, placement.workers, placement.artifacts) == ("cpu", 1, 1, "artifacts")
    assert not placement.emulated and placement.notes == ()


def test_a_host_with_a_tpu_trains_on_it_and_torch_xla_starts_its_processes() -> None:
    _, placement = place(Config(), {}, host=TPU, backend="xla")
    assert (placement.device, placement.processes) == ("tpu", 1)
    _, placement = place(Config(), {"PJRT_DEVICE": "CPU"}, host=TPU, backend="xla")
    assert placement.device == "cpu"


def test_on_a_cpu_that_emulates_nothing_a_number_of_cores_is_a_number_of_processes() -> None:
    assert place(Config(cores=3), {}, host=NOTHING, backend="xla")[1].processes == 3


def test_emulation_applies_and_announces_the_smaller_slice() -> None:
    asked = Config(epochs=10, emulated=EmulatedConfig(cores=2, examples=10_000, epochs=3))
    config, placement = place(asked, {"TPUJOB_EMULATED_CORES": "8"}, host=NOTHING, backend="xla")
    assert (config.epochs, config.examples, placement.processes, placement.emulated) == (3, 10_000, 2, True)
    assert placement.notes == (
        "emulated: 8 cores stand as 2 processes on XLA:CPU",
        "emulated: 10,000 training examples instead of all",
        "emulated: 3 epochs instead of 10",
    )


def test_the_smaller_slice_is_ignored_where_nothing_is_emulated() -> None:
    asked = Config(epochs=10, emulated=EmulatedConfig(cores=2, examples=10_000, epochs=3))
    config, placement = place(asked, {}, host=TPU, backend="xla")
    assert (config, placement.notes) == (asked, ())


@pytest.mark.parametrize(("cores", "declared", "given", "processes", "words"), [
    ("all", None, "2", 2, "all cores of this host stand as 2 processes"),
    ("all", 4, "2", 2, "all cores of this host stand as 2 processes"),
    (1, 2, "2", 1, "1 core stands as 1 process"), (4, None, "2", 2, "4 cores stand as 2 processes"),
])  # fmt: skip
def test_emulated_processes_never_exceed_what_the_host_was_given(
    cores: str | int, declared: int | None, given: str, processes: int, words: str
) -> None:
    asked = Config(cores=cores, emulated=EmulatedConfig(cores=declared))
    _, placement = place(asked, {"TPUJOB_EMULATED_CORES": given}, host=NOTHING, backend="xla")
    assert placement.processes == processes
    assert placement.notes == (f"emulated: {words} on XLA:CPU",)


def test_several_hosts_meet_at_the_coordinator() -> None:
    environ = {"TPUJOB_WORKER": "1", "TPUJOB_WORKERS": "4", "TPUJOB_COORDINATOR": "10.0.0.2:8476", "PJRT_DEVICE": "CPU"}
    placement = place(Config(), environ, host=NOTHING, backend="xla")[1]
    assert (placement.worker, placement.workers, placement.coordinator) == (1, 4, ("10.0.0.2", 8476))


@pytest.mark.parametrize(("environ", "words"), [
    ({"TPUJOB_WORKER": "x"}, "TPUJOB_WORKER is 'x'"),
    ({"TPUJOB_WORKERS": "0"}, "TPUJOB_WORKERS is '0'; it must be a whole number of at least 1"),
    ({"TPUJOB_WORKER": "2", "TPUJOB_WORKERS": "2"}, "TPUJOB_WORKER is 2, but TPUJOB_WORKERS is 2"),
    ({"TPUJOB_WORKERS": "2"}, "TPUJOB_COORDINATOR is not set"),
    ({"TPUJOB_COORDINATOR": "nowhere"}, "TPUJOB_COORDINATOR is 'nowhere'; it must be host:port"),
    ({"TPUJOB_EMULATED_CORES": "0"}, "TPUJOB_EMULATED_CORES is '0'"),
    ({"PJRT_DEVICE": "CUDA"}, "PJRT_DEVICE is CUDA"),
    ({"PJRT_DEVICE": "TPU", "TPUJOB_EMULATED_CORES": "2"}, "is set: the TPU is emulated"),
])  # fmt: skip
def test_a_contradictory_environment_is_refused(environ: dict[str, str], words: str) -> None:
    with pytest.raises(BadConfig) as caught:
        place(Config(), environ, host=NOTHING, backend="xla")
    assert words in str(caught.value)


def test_a_batch_is_divided_equally_or_refused() -> None:
    assert share(128, 8, 10_000) == 16
    with pytest.raises(BadConfig, match="100 is not a multiple of 8 processes; use 96 or 104"):
        share(100, 8, 10_000)
    with pytest.raises(BadConfig, match="2 is not a multiple of 8 processes; use 8"):
        share(2, 8, 10_000)
    with pytest.raises(BadConfig, match="128 is more than the 100 training examples"):
        share(128, 2, 100)


def test_a_tpu_is_recognised_by_its_pci_ids_and_google_network_cards_are_not(tmp_path: Path) -> None:
    for name, vendor, device in (("0", "0x1ae0", "0x0042"), ("1", "0x8086", "0x0063")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(f"{vendor}\n")
        (tmp_path / name / "device").write_text(f"{device}\n")
    assert look(tmp_path, {"PATH": ""}).tpu_chips == 0
    (tmp_path / "0" / "device").write_text("0x0063\n")
    assert look(tmp_path, {"PATH": ""}) == HostPlace(tpu_chips=1, tpu="v5e")


@pytest.mark.parametrize(("visible", "count"), [(None, 2), ("1", 1), ("", 0), ("0,1,2", 2), ("-1", 0)])
def test_gpus_are_counted_as_far_as_they_may_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, count: int
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA A100 (UUID: GPU-1)'\necho 'GPU 1: NVIDIA A100 (UUID: GPU-2)'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    environ = {"PATH": str(tmp_path)} | ({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    assert look(tmp_path / "nothing", environ).gpus == count


@pytest.mark.parametrize(("host", "environ", "chosen"), [
    (TPU, {}, "xla"), (GPUS, {}, "cuda"), (NOTHING, {}, "cpu"), (GPUS, {"TPUJOB_EMULATED_CORES": "2"}, "xla"),
    (NOTHING, {"PJRT_DEVICE": "CPU"}, "xla"),
])  # fmt: skip
def test_auto_selects_the_available_device(host: HostPlace, environ: dict[str, str], chosen: str) -> None:
    assert choose_backend("auto", environ, host) == chosen
    assert choose_backend("cpu", environ, host) == "cpu"


def test_each_gpu_and_each_chip_of_torch_tpu_has_a_process() -> None:
    assert place(Config(), {}, host=GPUS, backend="cuda")[1].processes == 4
    assert place(Config(cores=2), {}, host=GPUS, backend="cuda")[1].processes == 2
    placement = place(Config(), {}, host=TPU, backend="tpu")[1]
    assert (placement.device, placement.processes) == ("tpu", 8)
    with pytest.raises(BadConfig, match="cores: 5 requested, but this host has 4 GPUs"):
        place(Config(cores=5), {}, host=GPUS, backend="cuda")
    with pytest.raises(BadConfig, match=r"cores: 2 requested, but this host has 1 GPU$"):
        place(Config(cores=2), {}, host=HostPlace(gpus=1), backend="cuda")
    with pytest.raises(BadConfig, match="backend: cuda, but this host has no GPUs; use backend auto"):
        place(Config(), {}, host=NOTHING, backend="cuda")


@pytest.mark.parametrize(
    ("tpu", "able"),
    [("v4", (1, 2, 4, 8)), ("v5p", (1, 2, 4, 8)), ("v5e", (1, 4, 8)), ("v6e", (1, 4, 8)), ("v7", (2, 4, 8))],
)
def test_torch_tpu_starts_as_many_processes_as_its_table_of_topologies_has(tpu: str, able: tuple[int, ...]) -> None:
    for cores in range(1, 9):
        if cores in able:
            assert place(Config(cores=cores), {}, host=HostPlace(8, tpu=tpu), backend="tpu")[1].processes == cores
        else:
            with pytest.raises(BadConfig, match=rf"^cores: {cores} is .* a {tpu} host backend tpu starts {able[0]}, "):
                place(Config(cores=cores), {}, host=HostPlace(8, tpu=tpu), backend="tpu")


SLICE = {
    **{"TPUJOB_WORKER": "1", "TPUJOB_WORKERS": "2", "TPUJOB_COORDINATOR": "10.0.0.2:8476"},
    **{"TPUJOB_HOSTS": "10.0.0.2,10.0.0.3", "TPUJOB_TOPOLOGY": "2x4"},
}


@pytest.mark.parametrize(("cores", "changes", "words"), [
    (1, {}, "cores: 1 is one core of one host, but this slice has 2 hosts"),
    ("all", {"TPUJOB_COORDINATOR": ""}, "TPUJOB_COORDINATOR is not set"),
    ("all", {"TPUJOB_HOSTS": ""}, "TPUJOB_HOSTS is ''; backend tpu needs the addresses of all 2 hosts"),
    ("all", {"TPUJOB_HOSTS": "10.0.0.2"}, "TPUJOB_HOSTS is '10.0.0.2'"),
    ("all", {"TPUJOB_HOSTS": "10.0.0.2,"}, "TPUJOB_HOSTS is '10.0.0.2,'"),
    ("all", {"TPUJOB_TOPOLOGY": ""}, "TPUJOB_TOPOLOGY is ''; backend tpu needs the topology of the whole slice"),
    ("all", {"TPUJOB_TOPOLOGY": "4by2"}, "TPUJOB_TOPOLOGY is '4by2'"),
    ("all", {"TPUJOB_TOPOLOGY": "4x4"}, "4x4, which is 16 chips, but 2 hosts with 4 chips each are 8"),
])  # fmt: skip
def test_several_hosts_of_torch_tpu_are_named_and_wired_and_used_whole(
    cores: str | int, changes: dict[str, str], words: str
) -> None:
    host = HostPlace(4, tpu="v5e")
    placement = place(Config(), SLICE, host=host, backend="tpu")[1]
    assert (placement.hosts, placement.topology, placement.processes) == (("10.0.0.2", "10.0.0.3"), "2x4", 4)
    with pytest.raises(BadConfig) as caught:
        place(Config(cores=cores), SLICE | changes, host=host, backend="tpu")
    assert words in str(caught.value)


def test_half_precision_that_needs_a_gpu_is_refused_elsewhere() -> None:
    place(Config(precision="fp16"), {}, host=GPUS, backend="cuda")
    with pytest.raises(BadConfig, match="fp16 needs a GPU, and this is backend xla; bf16 works everywhere"):
        place(Config(precision="fp16"), {}, host=TPU, backend="xla")


@pytest.mark.parametrize(("config", "environ", "host", "backend", "words"), [
    (Config(cores=1), {"TPUJOB_WORKERS": "4", "TPUJOB_COORDINATOR": "h:1"}, TPU, "xla", "this slice has 4 hosts"),
    (Config(cores=4), SLICE, HostPlace(8, tpu="v5e"), "tpu",
     'cores: 4 of 8, but on several hosts backend tpu takes all: cores: "all"'),
    (Config(), {"TPUJOB_EMULATED_CORES": "2"}, GPUS, "cuda", "the TPU is emulated; use xla or cpu"),
])  # fmt: skip
def test_a_part_of_several_hosts_and_a_gpu_of_an_emulated_tpu_are_refused(
    config: Config, environ: dict[str, str], host: HostPlace, backend: Any, words: str
) -> None:
    with pytest.raises(BadConfig, match=words):
        place(config, environ, host=host, backend=backend)


PLAIN = """
import sys
def main(backend, run):
    run.say(f"rank {run.rank} of {run.world}")
    (run.artifacts / "mine.txt").write_text(run.options["word"])
    return {"loss": 0.5, "modules": sorted({"torch", "numpy"} & set(sys.modules)), "backend": backend}
"""


def start(
    directory: Path, config: dict[str, Any], python: str = sys.executable, **environ: str
) -> subprocess.Popen[str]:
    (directory / "train.json").write_text(json.dumps(config))
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("TPUJOB_", "PJRT_", "PYTHON"))}
    places = {"PYTHONPATH": f"{ROOT}:{directory}", "TPUJOB_ARTIFACTS": str(directory / "artifacts")}
    return subprocess.Popen(
        [python, "-S", "-m", "payload", "--config", "train.json"],  # -S: without any packages
        cwd=directory,
        env={**clean, **places, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def play(directory: Path, config: dict[str, Any], **more: Any) -> tuple[int, str, str]:
    process = start(directory, config, **more)
    out, err = process.communicate(timeout=HANG_S)
    return process.returncode, out, err


def config(**more: Any) -> dict[str, Any]:
    return {"backend": "none", "entry": "mine:main", "options": {"word": "hello"}, **more}


def check(directory: Path, python: str = sys.executable) -> None:
    (directory / "mine.py").write_text(PLAIN)
    assert play(directory, config(), python=python) == (0, "rank 0 of 1\n", "")
    artifacts = directory / "artifacts"
    metrics = json.loads((artifacts / "metrics.json").read_text())
    assert metrics["seconds"].keys() == {"total_s"} and metrics["world"]["emulated"] is False
    assert (metrics["loss"], metrics["modules"], metrics["backend"]) == (0.5, [], None)
    listed = {each["path"] for each in json.loads((artifacts / "manifest.json").read_text())["files"]}
    assert listed == {"metrics.json", "mine.txt", "provenance.json"}


def test_an_entry_runs_without_torch_and_numpy(tmp_path: Path) -> None:
    check(tmp_path)


def test_so_it_does_on_python_3_10(tmp_path: Path, python310: str) -> None:
    check(tmp_path, python310)


def test_another_worker_leaves_no_metrics_and_an_emulated_one_says_so(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PLAIN)
    where = {"TPUJOB_WORKER": "1", "TPUJOB_WORKERS": "2", "TPUJOB_EMULATED_CORES": "2", "PJRT_DEVICE": "CPU"}
    code, out, _ = play(tmp_path, config(), **where)
    assert (code, out) == (0, "emulated: one process on this machine's CPU, without a TPU\n")
    assert (
        not (tmp_path / "artifacts" / "metrics.json").exists() and (tmp_path / "artifacts" / "manifest.json").exists()
    )


def test_an_exception_is_printed_from_the_entry_on_and_ends_with_1(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def main(backend, run):\n    return {}['lost']\n")
    code, out, err = play(tmp_path, config())
    assert (code, out) == (1, "")
    assert err.startswith(f'Traceback (most recent call last):\n  File "{tmp_path}/mine.py", line 2, in main\n')
    assert not (tmp_path / "artifacts" / "manifest.json").exists()


ONE_NUMBER = """
class One:
    ndim = 0
    def item(self):
        return 0.25
def main(backend, run):
    return {"loss": One(), "pair": (1, 2)}
"""


def test_a_number_of_numpy_or_jax_that_the_entry_returns_is_a_plain_one(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(ONE_NUMBER)
    assert play(tmp_path, config()) == (0, "", "")
    metrics = json.loads((tmp_path / "artifacts" / "metrics.json").read_text())
    assert (metrics["loss"], metrics["pair"]) == (0.25, [1, 2])


def test_what_metrics_json_cannot_hold_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def main(b, run):\n    return {'loss': {1, 2}}\n")
    code, _, err = play(tmp_path, config())
    assert code == 2 and err == (
        "error: entry: mine:main: the dictionary['loss'] is a builtins.set, which JSON cannot carry; "
        "write it to a file in $TPUJOB_ARTIFACTS\n"
    )


def test_a_signal_ends_it_as_it_ends_any_program(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import time\ndef main(b, run):\n    run.say('begun')\n    time.sleep(600)\n")
    process = start(tmp_path, config())
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=HANG_S)
    assert process.returncode == -signal.SIGTERM


@pytest.mark.parametrize(("given", "words"), [
    (config(entry=None), 'backend: "none" is for an entry: the built-in training needs PyTorch'),
    (config(entry="mine:other"), "entry: mine:other: mine has no function other"),
    (config(entry="lost:main"), "entry: lost:main: there is no module lost here"),
])  # fmt: skip
def test_what_cannot_run_is_one_line(tmp_path: Path, given: dict[str, Any], words: str) -> None:
    (tmp_path / "mine.py").write_text("def main(b, run): return 3\n")
    code, out, err = play(tmp_path, given)
    assert code == 2 and words in err and err.count("\n") == 1, out + err
