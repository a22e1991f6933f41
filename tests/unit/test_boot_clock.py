"""The clock that no user can set, on each system that tpujob knows. macOS is played: stand-ins for its clocks and library."""

import ctypes
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator import boot_clock
from orchestrator.core.lease.timekeeping import Anchor, anchored

NAMELESS = "a boot without a name"
boot_id = boot_clock.boot_id.__wrapped__  # as the first question of a process


def on(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boot_clock, "sys", SimpleNamespace(platform=system))


@pytest.fixture
def sysctl(monkeypatch: pytest.MonkeyPatch) -> dict[bytes, bytes]:
    """What the kernel of a Mac says, by name; it knows no other one."""
    known: dict[bytes, bytes] = {}

    def sysctlbyname(name: bytes, value: Any, size: Any, new: None, new_bytes: int) -> int:
        if name not in known or (new, new_bytes) != (None, 0):
            return -1
        assert len(known[name]) < size._obj.value == len(value)
        value.value = known[name]
        return 0

    on("darwin", monkeypatch)
    monkeypatch.setattr(ctypes, "CDLL", lambda name, use_errno: SimpleNamespace(sysctlbyname=sysctlbyname))
    return known


@pytest.mark.parametrize(
    ("system", "clock"), [("linux", "CLOCK_BOOTTIME"), ("darwin", "CLOCK_MONOTONIC_RAW"), ("plan9", "monotonic")]
)
def test_the_clock_is_the_one_that_counts_sleep_where_the_system_has_one(
    monkeypatch: pytest.MonkeyPatch, system: str, clock: str
) -> None:
    clocks = {"CLOCK_BOOTTIME": 1.0, "CLOCK_MONOTONIC_RAW": 2.0, "monotonic": 3.0}
    on(system, monkeypatch)
    names = {name: name for name in clocks if name.startswith("CLOCK")}
    stand_in = SimpleNamespace(clock_gettime=clocks.__getitem__, monotonic=lambda: clocks["monotonic"], **names)
    monkeypatch.setattr(boot_clock, "time", stand_in)
    assert boot_clock.boot_s() == clocks[clock]


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="Linux")
def test_on_linux_it_is_the_kernels_and_a_time_namespace_is_another_boot(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before <= boot_clock.boot_s() <= time.clock_gettime(time.CLOCK_BOOTTIME)
    assert boot_id().startswith(boot_clock.BOOT_ID.read_text().strip())
    found = []
    for namespace in ("time:[1]", "time:[2]"):
        (tmp_path / namespace).touch()
        (tmp_path / f"link to {namespace}").symlink_to(namespace)
        monkeypatch.setattr(boot_clock, "TIME_NAMESPACE", tmp_path / f"link to {namespace}")
        found.append(boot_id())
    assert found[0] != found[1]


def test_on_macos_the_boot_is_named_by_its_session(sysctl: dict[bytes, bytes]) -> None:
    sysctl[b"kern.bootsessionuuid"] = b"0B5C0F0A-5C2B-4F3D-9C57-0A4C2E1D7B11"
    assert boot_id() == "0B5C0F0A-5C2B-4F3D-9C57-0A4C2E1D7B11"


def test_a_system_that_names_no_boot_counts_as_never_restarted_and_less_time_seems_to_have_passed(
    sysctl: dict[bytes, bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert sysctl == {} and boot_id() == NAMELESS
    on("plan9", monkeypatch)
    assert boot_id() == NAMELESS
    on("linux", monkeypatch)
    monkeypatch.setattr(boot_clock, "BOOT_ID", tmp_path / "none")
    assert boot_id() == NAMELESS
    up_for_a_day = Anchor(NAMELESS, zero=1_800_000_000.0)
    restarted = anchored(up_for_a_day, [], boot=boot_id(), boot_s=60.0, wall=1_800_100_000.0)
    assert restarted.now(60.0) == 1_800_000_060.0 < up_for_a_day.now(86_400.0)
