"""From environment variables to processes, and what emulation changes and announces."""

from pathlib import Path

import pytest

from payload.config import Config, EmulatedConfig
from payload.failures import BadConfig
from payload.launch.placement import HostPlace, choose_backend, look, place, share

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


def test_one_core_of_several_hosts_is_refused() -> None:
    with pytest.raises(BadConfig, match="this slice has 4 hosts"):
        place(Config(cores=1), {"TPUJOB_WORKERS": "4", "TPUJOB_COORDINATOR": "h:1"}, host=TPU, backend="xla")


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


def test_some_chips_of_several_hosts_are_refused() -> None:
    with pytest.raises(BadConfig, match='cores: 4 of 8, but on several hosts backend tpu takes all: cores: "all"'):
        place(Config(cores=4), SLICE, host=HostPlace(8, tpu="v5e"), backend="tpu")


def test_half_precision_that_needs_a_gpu_is_refused_elsewhere() -> None:
    place(Config(precision="fp16"), {}, host=GPUS, backend="cuda")
    with pytest.raises(BadConfig, match="fp16 needs a GPU, and this is backend xla; bf16 works everywhere"):
        place(Config(precision="fp16"), {}, host=TPU, backend="xla")


def test_an_emulated_tpu_has_no_gpu() -> None:
    with pytest.raises(BadConfig, match="the TPU is emulated; use xla or cpu"):
        place(Config(), {"TPUJOB_EMULATED_CORES": "2"}, host=GPUS, backend="cuda")
