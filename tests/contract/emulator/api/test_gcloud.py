"""The real gcloud works on the emulator, in the environment of `control`.

The scenarios are in `gcloud_commands`; a table in docs/emulator.md is generated from them.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.contract.conftest import Fault
from tests.contract.emulator.api.gcloud_commands import ALPHA, BOTH, NOT_HERE, SCENARIOS, Step
from tests.emulator_fixture import Emulator
from tests.waiting import HANG_S, until

pytestmark = [pytest.mark.gcloud, pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed")]
ZONE = "--zone=us-central1-a"
SHAPE = ("--accelerator-type=v5litepod-4", "--version=v2-alpha-tpuv5-lite")
Gcloud = Callable[..., subprocess.CompletedProcess[str]]
NEEDS_OPENSSH = {"ssh and scp", "queued resources"}


@pytest.fixture
def gcloud(shared_emulator: Emulator, tmp_path: Path) -> Gcloud:
    environment = shared_emulator.for_gcloud(tmp_path)

    def run(*words: str, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        argv = ["gcloud", *prefix, "compute", "tpus", *words]
        return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=HANG_S, check=False)

    return run


@pytest.fixture
def slow_maintenance(shared_emulator: Emulator) -> Iterator[None]:
    """A long notice: gcloud is too slow for that of other tests."""
    with shared_emulator.settings(notice_s=60):
        yield


def stories() -> list[object]:
    return [
        pytest.param(name, track, id=f"{track}: {name}")
        for name, steps in SCENARIOS.items()
        for track in BOTH
        if any(track in step.tracks for step in steps)
    ]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "track"), stories())
def test_every_command_of_a_scenario_has_the_expected_output(
    gcloud: Gcloud, slow_maintenance: None, tmp_path: Path, name: str, track: str
) -> None:
    if name in NEEDS_OPENSSH and not (shutil.which("ssh") and shutil.which("ssh-keygen")):
        pytest.skip("OpenSSH is not installed")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "inner").write_text("hello\n")
    (tmp_path / "file").write_text("hello\n")
    names = {"n": track, "file": str(tmp_path / "file"), "folder": str(tmp_path / "folder")}
    for step in SCENARIOS[name]:
        if track in step.tracks:
            take(step, gcloud, names, (ALPHA,) if track == ALPHA else ())


def take(step: Step, gcloud: Gcloud, names: dict[str, str], prefix: tuple[str, ...]) -> None:
    expected = step.prints.format_map(names)

    def says_it() -> bool:
        done = gcloud(*words_of(step, names), prefix=prefix)
        output = done.stdout + done.stderr
        assert (done.returncode != 0) is step.fails, f"{shlex.join(done.args)}\n{output}"
        assert step.patient or expected in output, f"{shlex.join(done.args)}\n{output}"
        return expected in output

    until(says_it, f"{expected!r} of {shlex.join(words_of(step, names))}")


def words_of(step: Step, names: dict[str, str]) -> list[str]:
    arguments = shlex.split(step.arguments.format_map(names))
    return [*step.command.split(), *arguments, *([f"--zone={step.zone}"] if step.zone else [])]


def test_every_command_of_this_gcloud_is_in_the_contract_or_listed_as_missing() -> None:
    """gcloud keeps one file for each of its commands."""
    binary = shutil.which("gcloud")
    assert binary is not None
    found = {root for root in Path(binary).resolve().parents if (root / "lib" / "surface").is_dir()}
    found |= {Path("/usr/lib/google-cloud-sdk")} if not found else set()
    surface = next(iter(found)) / "lib" / "surface" / "compute" / "tpus"
    if not surface.is_dir():
        pytest.skip("this gcloud keeps its commands somewhere else")
    files = [path for path in surface.rglob("*") if path.suffix in (".py", ".yaml") and path.stem != "__init__"]
    commands = {" ".join(path.relative_to(surface).with_suffix("").parts).replace("_", "-") for path in files}
    known = {step.command for steps in SCENARIOS.values() for step in steps}
    missing = {name.strip() for names in NOT_HERE for name in names.split(",")}
    assert {name for name in commands - known if name not in missing and name.split()[0] not in missing} == set()
    assert known - commands == set()


@pytest.mark.exhaustive
def test_a_stockout_reads_as_on_the_real_cloud(gcloud: Gcloud, fault: Fault) -> None:
    fault("stockout", match={"node": "g2"})
    done = gcloud("tpu-vm", "create", "g2", ZONE, *SHAPE)
    assert done.returncode == 1
    assert '"code": 8' in done.stderr
    assert 'There is no more capacity in the zone \\"us-central1-a\\"' in done.stderr


@pytest.mark.exhaustive
def test_ssh_works_without_the_wrapper_when_the_port_is_given(gcloud: Gcloud, shared_emulator: Emulator) -> None:
    assert gcloud("tpu-vm", "create", "g3", ZONE, *SHAPE).returncode == 0
    [node] = [row for row in shared_emulator.status()["nodes"] if row["name"].endswith("/g3")]
    output = gcloud("tpu-vm", "ssh", "g3", ZONE, f"--ssh-flag=-p {node['ssh_ports'][0]}", "--command=pwd")
    assert f"/{node['uid']}/worker0/home" in output.stdout, output.stderr
    assert gcloud("tpu-vm", "delete", "g3", ZONE, "--async").returncode == 0
