"""From environment variables to processes, and what emulation changes and announces."""

from __future__ import annotations

from pathlib import Path

import pytest

from payload.config import Config, Emulated
from payload.failures import ConfigError
from payload.placement import host_has_tpu, place, share


def test_without_any_variable_one_process_trains_on_the_cpu() -> None:
    config, placement = place(Config(), {}, has_tpu=False)
    assert config == Config()
    assert (placement.device, placement.processes, placement.workers, placement.artifacts) == ("cpu", 1, 1, "artifacts")
    assert not placement.emulated and placement.notes == ()


def test_a_host_with_a_tpu_trains_on_it_and_torch_xla_starts_its_processes() -> None:
    _, placement = place(Config(), {}, has_tpu=True)
    assert (placement.device, placement.processes) == ("tpu", 1)
    _, placement = place(Config(), {"PJRT_DEVICE": "CPU"}, has_tpu=True)
    assert placement.device == "cpu"


def test_on_a_cpu_that_emulates_nothing_a_number_of_cores_is_a_number_of_processes() -> None:
    assert place(Config(cores=3), {}, has_tpu=False)[1].processes == 3


def test_emulation_applies_and_announces_the_smaller_slice() -> None:
    asked = Config(epochs=10, emulated=Emulated(cores=2, examples=10_000, epochs=3))
    config, placement = place(asked, {"TPUJOB_EMULATED_CORES": "8"}, has_tpu=False)
    assert (config.epochs, config.examples, placement.processes, placement.emulated) == (3, 10_000, 2, True)
    assert placement.notes == (
        "emulated: 8 cores stand as 2 processes on XLA:CPU",
        "emulated: 10,000 training examples instead of all",
        "emulated: 3 epochs instead of 10",
    )


def test_the_smaller_slice_is_ignored_where_nothing_is_emulated() -> None:
    asked = Config(epochs=10, emulated=Emulated(cores=2, examples=10_000, epochs=3))
    config, placement = place(asked, {}, has_tpu=True)
    assert (config, placement.notes) == (asked, ())


@pytest.mark.parametrize(
    ("cores", "declared", "given", "processes", "words"),
    [
        ("all", None, "2", 2, "all cores of this host stand as 2 processes"),
        ("all", 4, "2", 2, "all cores of this host stand as 2 processes"),
        (1, 2, "2", 1, "1 core stands as 1 process"),
        (4, None, "2", 2, "4 cores stand as 2 processes"),
    ],
)
def test_emulated_processes_never_exceed_what_the_host_was_given(
    cores: str | int, declared: int | None, given: str, processes: int, words: str
) -> None:
    asked = Config(cores=cores, emulated=Emulated(cores=declared))
    _, placement = place(asked, {"TPUJOB_EMULATED_CORES": given}, has_tpu=False)
    assert placement.processes == processes
    assert placement.notes == (f"emulated: {words} on XLA:CPU",)


def test_several_hosts_meet_at_the_coordinator() -> None:
    environ = {"TPUJOB_WORKER": "1", "TPUJOB_WORKERS": "4", "TPUJOB_COORDINATOR": "10.0.0.2:8476", "PJRT_DEVICE": "CPU"}
    placement = place(Config(), environ, has_tpu=False)[1]
    assert (placement.worker, placement.workers, placement.coordinator) == (1, 4, ("10.0.0.2", 8476))


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"TPUJOB_WORKER": "x"}, "TPUJOB_WORKER is 'x'"),
        ({"TPUJOB_WORKERS": "0"}, "TPUJOB_WORKERS is '0'; it must be a whole number of at least 1"),
        ({"TPUJOB_WORKER": "2", "TPUJOB_WORKERS": "2"}, "TPUJOB_WORKER is 2, but TPUJOB_WORKERS says there are 2"),
        ({"TPUJOB_WORKERS": "2"}, "TPUJOB_COORDINATOR does not say where they meet"),
        ({"TPUJOB_COORDINATOR": "nowhere"}, "TPUJOB_COORDINATOR is 'nowhere'; it must be host:port"),
        ({"TPUJOB_EMULATED_CORES": "0"}, "TPUJOB_EMULATED_CORES is '0'"),
        ({"PJRT_DEVICE": "CUDA"}, "PJRT_DEVICE is CUDA"),
        ({"PJRT_DEVICE": "TPU", "TPUJOB_EMULATED_CORES": "2"}, "says that the TPU is emulated"),
    ],
)
def test_a_contradictory_environment_is_refused(environ: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        place(Config(), environ, has_tpu=False)
    assert words in str(caught.value)


def test_one_core_of_several_hosts_is_refused() -> None:
    with pytest.raises(ConfigError, match="this slice has 4 hosts"):
        place(Config(cores=1), {"TPUJOB_WORKERS": "4", "TPUJOB_COORDINATOR": "h:1"}, has_tpu=True)


def test_a_batch_is_dealt_out_evenly_or_not_at_all() -> None:
    assert share(128, 8, 10_000) == 16
    with pytest.raises(ConfigError, match="100 cannot be dealt out evenly to 8 processes; 96 or 104 can"):
        share(100, 8, 10_000)
    with pytest.raises(ConfigError, match="2 cannot be dealt out evenly to 8 processes; 8 can"):
        share(2, 8, 10_000)
    with pytest.raises(ConfigError, match="128 is more than the 100 training examples"):
        share(128, 2, 100)


def test_a_tpu_is_recognised_by_its_pci_ids_and_google_network_cards_are_not(tmp_path: Path) -> None:
    for name, vendor, device in (("0", "0x1ae0", "0x0042"), ("1", "0x8086", "0x0063")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(f"{vendor}\n")
        (tmp_path / name / "device").write_text(f"{device}\n")
    assert not host_has_tpu(tmp_path)
    (tmp_path / "0" / "device").write_text("0x0063\n")
    assert host_has_tpu(tmp_path)
