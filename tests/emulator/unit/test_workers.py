"""Emulated workers: their Pythons, host keys, guest attributes and tunnels, also after a daemon was killed."""

import asyncio
import shutil
import socket
import subprocess
import zipfile
from collections.abc import Callable, Sequence
from importlib import metadata
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cloud_tpu_emulator.relay.tunnels import Tunnels
from cloud_tpu_emulator.vms import pythons, ssh_server
from cloud_tpu_emulator.vms.metadata_server import AttributeRate
from cloud_tpu_emulator.vms.pythons import COMMANDS, TRAINING, Pythons, lends_torch
from cloud_tpu_emulator.vms.ssh_server import SshServer
from tests.forked import dies_at
from tests.waiting import HANG_S, ran
from tests.wheels import wheel

SEES_TORCH = "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is None)"
HAS_TORCH = pythons._with_requirements(["torch"]) != []
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="needs the `local` extra")


@pytest.fixture
def worker(tmp_path: Path) -> Path:
    made = tmp_path / "a state directory" / "worker0"  # with spaces
    Pythons(tmp_path / "lent").make_all(made, lend_torch=False)
    return made


def run(place: Path, *arguments: str, program: str = "python", **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program as a worker does: with an environment that has nothing of tpujob."""
    argv = [str(place / "bin" / program), *arguments]
    env = {"HOME": str(place.parent), "PATH": "/usr/bin:/bin", **variables}
    return ran(argv, cwd=place, env=env)


def pip(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    done = run(place, *arguments, "--disable-pip-version-check", program="pip")
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def version(place: Path, module: str) -> str:
    return run(place, "-c", f"import {module}; print({module}.__version__)").stdout.strip()


@pytest.mark.parametrize("name", [COMMANDS, TRAINING])
def test_none_of_tpujobs_own_packages_is_installed(worker: Path, name: str) -> None:
    for module in ("pydantic", "typer", "asyncssh", "orchestrator"):
        assert f"No module named '{module}'" in run(worker / name, "-c", f"import {module}").stderr


def test_a_job_says_once_that_it_opens_what_no_tpu_vm_has_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Path(pythons.foreign_paths.__file__).read_text()
    (tmp_path / "watch.py").write_text(watch.replace(f" /{tmp_path.parts[1]} ", " "))  # where the data of this test are
    monkeypatch.setattr(pythons.foreign_paths, "__file__", str(tmp_path / "watch.py"))
    Pythons(tmp_path / "lent").make_all(tmp_path / "worker0", lend_torch=False)
    python, training = tmp_path / "worker0" / COMMANDS, tmp_path / "worker0" / TRAINING / "bin"
    variables = {"TPUJOB_RUN": "r", "TPUJOB_EMULATED_TRAINING": str(training)}
    told = f"emulator: the job opens {'/'.join(tmp_path.parts[:4])[1:]} of this machine; a TPU VM does not have it"
    places = (str(tmp_path), "/etc", ".", "/", "/opt", "/home/")
    code = f"import json, os; open({str(tmp_path / 'watch.py')!r}); [os.listdir(place) for place in {places}]"
    assert run(python, "-c", code).stderr == "", "it is no job"
    said = run(python, "-c", f"{code}; open('/no/such/place')", **variables).stderr.splitlines()
    assert said[0] == told and "emulator:" not in "".join(said[1:]) and said[-1].endswith("directory: '/no/such/place'")
    assert run(python, "-c", code, **variables).stderr == "", "another process of the job has said it"


@needs_torch
def test_trainings_find_torch_and_commands_only_if_it_is_lent(worker: Path, tmp_path: Path) -> None:
    assert run(worker / COMMANDS, "-c", SEES_TORCH).returncode == 1
    assert run(worker / TRAINING, "-c", SEES_TORCH).returncode == 0
    assert (worker / TRAINING / "bin" / "torchrun").exists() and not lends_torch(worker)
    lending = tmp_path / "lending"
    Pythons(tmp_path / "lent").make_all(lending, lend_torch=True)
    assert run(lending / COMMANDS, "-c", SEES_TORCH).returncode == 0 and lends_torch(lending)


@pytest.mark.torch
@needs_torch
@pytest.mark.exhaustive
def test_lent_torch_and_its_scripts_work(worker: Path) -> None:
    code = "import torch, numpy; print(torch.ones(2).numpy().sum())"
    assert run(worker / TRAINING, "-c", code).stdout.strip() == "2.0"
    assert "usage: torchrun" in run(worker / TRAINING, "--help", program="torchrun").stdout


@pytest.mark.ci
def test_an_install_shadows_a_lent_package_until_it_is_uninstalled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pythons, "TORCH", ("packaging",))  # small, in place of torch
    lender = Path(str(metadata.distribution("packaging").locate_file("packaging")))
    before = sorted(lender.rglob("*.py"))
    Pythons(tmp_path / "lent").make_all(tmp_path, lend_torch=False)
    training, lent = tmp_path / TRAINING, metadata.version("packaging")
    wheel(tmp_path / "wheels", "packaging", "9999.1")
    assert version(training, "packaging") == lent
    refused = pip(training, "uninstall", "--yes", "packaging").stdout
    assert "outside environment" in refused, refused
    pip(training, "install", "--no-index", "--find-links", str(tmp_path / "wheels"), "--upgrade", "packaging")
    assert version(training, "packaging") == "9999.1"
    pip(training, "uninstall", "--yes", "packaging")
    assert version(training, "packaging") == lent == metadata.version("packaging")
    assert sorted(lender.rglob("*.py")) == before


@pytest.mark.ci
def test_pip_can_replace_itself(worker: Path) -> None:
    lent = version(worker / COMMANDS, "pip")
    wheel(worker / "wheels", "pip", "9999.1")
    pip(worker / COMMANDS, "install", "--no-index", "--find-links", str(worker / "wheels"), "--upgrade", "pip")
    assert version(worker / COMMANDS, "pip") == "9999.1" and version(worker / TRAINING, "pip") == lent


@pytest.mark.ci
def test_what_a_job_installed_stays_when_the_worker_starts_again(worker: Path, tmp_path: Path) -> None:
    wheel(tmp_path / "wheels", "mine")
    pip(worker / COMMANDS, "install", "--no-index", "--find-links", str(tmp_path / "wheels"), "mine")
    Pythons(tmp_path / "lent").make_all(worker, lend_torch=True)
    assert version(worker / COMMANDS, "mine") == "0.0.1"
    assert not lends_torch(worker), "decided when the worker was created"


def test_torch_that_is_installed_while_the_daemon_runs_is_lent_to_the_next_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pythons, "TORCH", ("late",))  # small, in place of torch
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
    daemons = Pythons(tmp_path / "lent")
    before, after = tmp_path / "before", tmp_path / "after"
    daemons.make_all(before, lend_torch=True)
    with zipfile.ZipFile(wheel(tmp_path / "wheels", "late")) as archive:
        archive.extractall(tmp_path / "site-packages")
    daemons.make_all(before, after, lend_torch=True)
    assert [version(after / name, "late") for name in (TRAINING, COMMANDS)] == ["0.0.1", "0.0.1"]
    assert version(before / TRAINING, "late") == "", "a worker stays as it was created"


def test_workers_with_another_python_than_the_daemons_get_new_ones(worker: Path, tmp_path: Path) -> None:
    python = worker / COMMANDS / "bin" / "python"
    (worker / COMMANDS / pythons.COMPLETE).write_text("of a Python that was removed")
    python.unlink()
    Pythons(tmp_path / "lent").make_all(worker, lend_torch=False)
    assert python.exists()


@pytest.mark.ci
def test_an_environment_without_pip_lends_the_one_that_python_bundles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the environments of uv and pipx."""
    if pythons._bundled_pip() is None:
        pytest.skip("this Python has no ensurepip")
    hide_pip(monkeypatch)
    Pythons(tmp_path / "lent").make_all(tmp_path, lend_torch=False)
    assert "lent/pip-" in pip(tmp_path / COMMANDS, "--version").stdout


def test_without_any_pip_a_worker_does_not_use_that_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide_pip(monkeypatch)
    monkeypatch.setattr(pythons, "_bundled_pip", lambda: None)
    Pythons(tmp_path / "lent").make_all(tmp_path, lend_torch=False)
    done = run(tmp_path / COMMANDS, "--version", program="pip")
    assert done.returncode != 0 and "No module named 'pip'" in done.stderr


def hide_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    find: Callable[[Sequence[str]], Any] = pythons._with_requirements
    monkeypatch.setattr(pythons, "_with_requirements", lambda names: [] if list(names) == ["pip"] else find(names))


@pytest.mark.ci
def test_the_next_daemon_completes_what_a_killed_one_began(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "module.py").write_text("")
    for line in count():
        dies = dies_at(line, pythons, lambda: make_one(tmp_path))
        made = make_one(tmp_path)
        assert pythons._pth(made, "one").exists() and (made / "bin" / "tool").exists(), line
        assert (tmp_path / "lent" / "one" / "module.py").exists(), line
        assert not [path.name for path in (tmp_path / "lent").iterdir() if path.suffix == ".new"]
        if not dies:
            break
        (made / pythons.COMPLETE).unlink()
        shutil.rmtree(tmp_path / "lent")
    assert line > 10 and run(made, "-c", "import module").returncode == 0


def make_one(directory: Path) -> Path:
    links = pythons._complete(
        directory / "lent" / "one", lambda draft: (draft / "module.py").symlink_to(directory / "package" / "module.py")
    )
    pythons.make(directory / "python", [pythons._lent("one", links, {"tool": "module:main"})])
    return directory / "python"


def server(home: Path) -> SshServer:
    return SshServer(home / "host_key", home, lambda user: set(), lambda user: {})


def test_after_a_kill_at_any_line_the_next_daemon_can_create_the_host_key(tmp_path: Path) -> None:
    for line in count():
        home = tmp_path / str(line)
        home.mkdir()
        killed = dies_at(line, ssh_server, server(home)._host_key)
        key = server(home)._host_key()
        assert key == server(home)._host_key(), "and the key stays the same"
        assert (home / "host_key").stat().st_mode & 0o077 == 0
        if not killed:
            break
    assert line > 3


def kept(times: list[float], speed: float = 1.0) -> list[bool]:
    rate = AttributeRate()
    return [rate.within(at, speed) for at in times]


def test_three_in_a_second_are_kept_and_a_fourth_is_dropped() -> None:
    assert kept([0.0, 0.1, 0.2, 0.9, 2.0]) == [True, True, True, False, True]


def test_ten_in_a_minute_are_kept_and_an_eleventh_is_dropped() -> None:
    assert kept([2.0 * n for n in range(11)]) == 10 * [True] + [False]
    assert kept([6.1 * n for n in range(30)]) == 30 * [True]


@pytest.mark.parametrize(("speed", "dropped"), [(0.0, 0), (1.0, 10), (30.0, 10)])
def test_the_limits_scale_with_the_speed_and_speed_0_means_no_limit(speed: float, dropped: int) -> None:
    assert kept([1.9 / (speed or 1.0) * n for n in range(20)], speed).count(False) == dropped


MORE_THAN_FITS = bytes(32 << 20)


def test_the_end_of_all_tunnels_waits_for_no_worker_that_reads_nothing() -> None:
    driver: Any = SimpleNamespace(inside=set())

    async def end(port: int) -> None:
        tunnels = Tunnels(driver)
        tunnel = await tunnels.open("node", port)
        assert len(driver.inside) == 1
        tunnel.writer.write(MORE_THAN_FITS)
        tunnels.close()
        await tunnel.writer.wait_closed()

    with socket.create_server(("127.0.0.1", 0)) as silent:
        asyncio.run(asyncio.wait_for(end(silent.getsockname()[1]), HANG_S))
    assert driver.inside == set()
