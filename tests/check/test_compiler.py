"""The TPU compiler, asked about stored dumps: whatever version it has, these are its answers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from orchestrator.check import compiler
from orchestrator.check.target import chips_of
from orchestrator.errors import NotJudged

DUMPS = Path(__file__).with_name("dumps")
MIB = 1 << 20


@pytest.fixture
def installed(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    compiler.install(lambda stage, text: None)


def judged(name: str, topology: str = "v5e:1x1", replicas: int = 1) -> Mapping[str, Any]:
    with compiler.TpuCompiler(topology) as made:
        answer = made.judge(DUMPS / f"{name}.hlo.pb", replicas).result()
    assert answer["outcome"] == "compiled", answer
    return answer


@pytest.mark.ci
@pytest.mark.usefixtures("installed")
def test_what_a_program_donates_is_counted_once() -> None:
    of_jax, of_torch = judged("jax_donates"), judged("torch_xla_sgd")
    assert of_jax["aliased_bytes"] == 512 * 2048 * 4
    assert of_torch["aliased_bytes"] >= 2 * 512 * 2048 * 4  # the weights, and their momentum


@pytest.mark.exhaustive
@pytest.mark.usefixtures("installed")
def test_of_a_sharded_program_each_chip_has_its_part() -> None:
    answer = judged("jax_sharded_over_8", "v5e:2x4")
    assert (answer["partitions"], answer["replicas"]) == (8, 1)
    assert answer["argument_bytes"] == 512 * 2048 * 4 + 64 * 512 * 4
    assert [(each["name"], each["shape"]) for each in answer["parameters"]] == [("w", [512, 2048]), ("x", [512, 512])]


@pytest.mark.exhaustive
@pytest.mark.usefixtures("installed")
def test_a_line_of_the_program_is_named_for_its_largest_values() -> None:
    largest = judged("jax_sharded_over_8", "v5e:2x4")["largest"]
    assert all("sharded.py:6" in each["name"] for each in largest[:3])


@pytest.mark.exhaustive
@pytest.mark.usefixtures("installed")
def test_every_accelerator_of_one_host_from_v4_on_is_known_with_its_devices_and_memory() -> None:
    for accelerator, hbm_gib in (("v4-8", 32), ("v5litepod-8", 16), ("v5p-8", 95), ("v6e-8", 32), ("tpu7x-8", 96)):
        chips = chips_of(accelerator)
        with compiler.TpuCompiler(chips.compiler_name) as made:
            described = made.described()
        assert described["devices"] == chips.devices, accelerator
        assert 0.9 * hbm_gib < described["hbm_bytes"] / (1 << 30) < 1.02 * hbm_gib, accelerator


@pytest.mark.parametrize(
    ("accelerator", "slices", "why"),
    [("v3-8", 1, "v4 and later"), ("v5litepod-16", 1, "4 hosts"), ("v6e-8", 2, "2 slices"), ("v99-8", 1, "catalog")],
)
def test_what_there_is_no_compiler_for_is_not_judged(accelerator: str, slices: int, why: str) -> None:
    with pytest.raises(NotJudged, match=why):
        chips_of(accelerator, slices)
