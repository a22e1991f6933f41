"""The Python of the workers: 3.10 as in today's images, what a job installs there, and when it is installed anew."""

import os
import shutil
from pathlib import Path

import certifi
import psutil
import pytest

from tests.cli_fixture import Cli, Tpujob
from tests.programs_fixture import HAS_TORCH, needs_torch
from tests.waiting import until
from tests.wheels import wheel

HEAD = "name: mine\ntpu: {zone: us-central1-a}\n"
INSTALL = "pip install --no-index --find-links wheels --upgrade --disable-pip-version-check"
LOOKS_FOR_TORCH = "python -c 'import importlib.util as u; print(u.find_spec(\"torch\"))'"


@pytest.mark.ci
def test_an_install_that_tpujob_could_not_live_with_does_not_touch_it(cli: Cli) -> None:
    for name in ("pydantic", "typer", "asyncssh"):
        wheel(cli.directory / "code" / "wheels", name)
    text = f"{HEAD}code: code\nsetup: {INSTALL} pydantic typer asyncssh\n"
    job = cli.job(text + "command: python -c 'import pydantic; print(pydantic.__version__)'\n")
    astray = {"PIP_TARGET": str(cli.directory / "target"), "PIP_USER": "1", "VIRTUAL_ENV": str(cli.directory / "venv")}
    done = cli("run", job, env=astray)
    assert done.returncode == 0, done.text
    assert "worker0 | 0.0.1" in done.stdout and not (cli.directory / "target").exists()
    after = cli("status")
    assert after.returncode == 0, after.text


@pytest.mark.parametrize(
    "train", [False, pytest.param(True, marks=[pytest.mark.torch, pytest.mark.exhaustive])], ids=["command", "train"]
)
def test_a_setup_installs_where_its_job_finds_it(tpujob: Tpujob, train: bool) -> None:
    if train and not HAS_TORCH:
        pytest.skip("needs the `local` extra")
    code = tpujob.directory / "code"
    wheel(code / "wheels", "helper")
    found = "import helper, sys; print('found', helper.__version__); sys.exit(3)\n"
    (code / "main.py").write_text(found)
    what = "train: {entry: 'main:main'}\n" if train else "command: python main.py\n"
    done = tpujob("run", tpujob.job(f"{HEAD}code: code\nsetup: {INSTALL} helper\n{what}"))
    assert "worker0 | found 0.0.1" in done.stdout, done.text


@pytest.mark.exhaustive
@needs_torch
def test_commands_find_no_torch_unless_the_emulator_lends_it_and_says_so(tpujob: Tpujob) -> None:
    job = tpujob.job(f"{HEAD}command: {LOOKS_FOR_TORCH}\n")
    done = tpujob("run", job)
    assert done.returncode == 0 and "worker0 | None" in done.stdout and "lent" not in done.stdout, done.text
    assert "a TPU VM has Python 3.10" in done.stderr
    said = tpujob.on_80_columns("emulator", "up", "--lend-torch")
    assert [line[:12] for line in said] == ["emulator at ", "emulator thi"] and max(map(len, said)) <= 80, said
    assert "export TPUJOB_EMULATOR_URL=" in tpujob("emulator", "up", "--lend-torch").stdout, "for a shell"
    lent = tpujob("run", job)
    assert lent.returncode == 0 and "worker0 | ModuleSpec" in lent.stdout, lent.text
    assert "worker0 | emulated: this machine's torch is lent to the job's commands" in lent.stdout
    assert "torch is lent" in tpujob("emulator", "env").stderr
    assert "lent" not in tpujob("emulator", "up", "--no-lend-torch").stderr
    assert "worker0 | None" in tpujob("run", job).stdout


JOB = """
name: older
tpu: {zone: us-central1-a}
code: code
command: |
  cat shipped
  python3 -c 'import sys; print("on", *sys.version_info[:2])'
  echo result > "$TPUJOB_ARTIFACTS/result.txt"
"""


def watchdogs(worker: Path) -> list[str]:
    """The programs in which this worker's watchdog runs."""
    script = str(worker.resolve() / "watchdog" / "watchdog.py")
    found = [process.info for process in psutil.process_iter(["cmdline", "exe"])]
    return [each["exe"] for each in found if script in (each["cmdline"] or []) and "python" in str(each["exe"])]


def test_a_run_on_python_3_10_has_its_artifacts_while_its_watchdog_watches(tpujob: Tpujob, python310: str) -> None:
    (tpujob.directory / "code").mkdir()
    (tpujob.directory / "code" / "shipped").write_text("as it was\n")
    assert tpujob("up", "alice", "--zone", "us-central1-a").returncode == 0
    (node,) = tpujob.alive()
    assert tpujob("stop", "alice").returncode == 0
    (worker,) = [
        path.parent
        for path in tpujob.emulator_directory.glob("vms/*/worker0/startup-script")
        if node.rpartition("/")[2] in path.read_text()
    ]
    python3 = worker / "python" / "bin" / "python3"
    python3.unlink()
    python3.write_text(f'#!/bin/sh\nexec {python310} "$@"\n')
    python3.chmod(0o755)
    up = tpujob("up", "alice")
    assert up.returncode == 0, up.text
    done = tpujob("run", tpujob.job(JOB))
    assert done.returncode == 0, done.text
    assert "worker0 | as it was\nworker0 | on 3 10\n" in done.stdout and "alice is kept until" in done.stdout
    (artifact,) = tpujob.directory.glob("runs/older-*/worker0/artifacts/result.txt")
    assert artifact.read_text() == "result\n"
    assert f"exec {python310}" in python3.read_text(), "the worker kept it"
    assert watchdogs(worker) == [os.path.realpath(python310)]
    assert tpujob("down", "alice").returncode == 0
    assert tpujob.alive() == []


ALPHA = """
tpu: {{zone: us-central1-a}}
requirements: requirements.txt
env: {{PIP_NO_INDEX: 1, PIP_FIND_LINKS: {wheels}}}
setup: pip --version
command: python -c "import alpha, sys; print('alpha', alpha.__version__, 'in', sys.prefix)"; echo trusts $REQUESTS_CA_BUNDLE
limits: {{max_duration: 6m}}
"""


@pytest.mark.ci
def test_requirements_are_installed_once_on_a_held_slice_and_again_when_they_change(cli: Cli) -> None:
    wheels = cli.directory / "the wheels"
    wheel(wheels, "alpha")
    text = ALPHA.format(wheels=f"file://{wheels}".replace(" ", "%20"))
    listed = cli.directory / "requirements.txt"
    listed.write_text("alpha\n")
    job = cli.job(text)
    cli.env["REQUESTS_CA_BUNDLE"] = certifi.where()
    assert cli("up", "--zone", "us-central1-a").returncode == 0
    first = cli("run", job)
    assert first.returncode == 0, first.text
    assert "requirements.txt: 1 package in " in first.stdout and "worker0 | alpha 0.0.1 in " in first.stdout
    assert f"trusts {certifi.where()}\n" in first.stdout, "as this machine does, from which the worker connects"
    again = cli("run", job)
    assert "requirements.txt: 1 package, is there already" in again.stdout and "alpha 0.0.1 in" in again.stdout
    wheel(wheels, "alpha", "2.0")
    listed.write_text("alpha==2.0\n")
    changed = cli("run", job)
    assert "requirements.txt: 1 package in " in changed.stdout and "alpha 2.0 in" in changed.stdout, changed.text
    (lock,) = [path.read_text() for path in cli.directory.glob("runs/*/requirements.lock") if "2.0" in path.read_text()]
    assert "\nalpha==2.0 --hash=sha256:" in lock
    listed.write_text("alpha\nnosuch\n")
    refused = cli("run", job)
    assert refused.returncode == 64, refused.text
    assert "requirements: requirements.txt:2: `nosuch`: for Python" in refused.text


LOCKED = """
tpu: {{accelerator: v5litepod-16, zone: us-central1-a}}
requirements: [alpha]
env: {{PIP_NO_INDEX: 1, PIP_FIND_LINKS: 'file://{wheels}'}}
on_preemption: restart
command: |
  python -c 'import alpha; print(alpha.__version__)' > {there}/$TPUJOB_ATTEMPT.$TPUJOB_WORKER
  grep alpha "$VIRTUAL_ENV/requirements.txt" >> {there}/$TPUJOB_ATTEMPT.$TPUJOB_WORKER
  case $TPUJOB_ATTEMPT in *-1) [ -e {there}/again ] || sleep 60;; esac
limits: {{max_duration: 6m}}
"""


@pytest.mark.ci
def test_every_worker_of_every_attempt_installs_the_same_lock_and_a_held_slice_installs_it_once(cli: Cli) -> None:
    wheels, there = cli.directory / "wheels", cli.directory / "there"
    there.mkdir()
    wheel(wheels, "alpha")
    job = cli.job(LOCKED.format(wheels=wheels, there=there))
    process = cli.start("run", job)
    until(lambda: len([path for path in there.iterdir() if path.read_text().count("\n") == 2]) == 4, "all workers")
    wheel(wheels, "alpha", "9.0")  # which an attempt would get that chose for itself
    cli.admin("POST", f"nodes/{cli.alive()[0].rpartition('/')[2]}:preempt", {"notice_s": 0})
    out, err = process.communicate()
    assert process.returncode == 0, out + err
    found = {path.name[-3:]: path.read_text() for path in there.iterdir()}
    assert sorted(found) == [f"{attempt}.{worker}" for attempt in (1, 2) for worker in range(4)]
    (lock,) = cli.directory.glob("runs/*/requirements.lock")
    line = lock.read_text().splitlines()[1]
    assert set(found.values()) == {f"0.0.1\n{line}\n"} and line.startswith("alpha==0.0.1 --hash=sha256:")
    (there / "again").touch()
    assert cli("up", "--accelerator", "v5litepod-16", "--zone", "us-central1-a").returncode == 0
    assert "alpha: 1 package in " in cli("run", job).stdout.replace("1 requirement:", "alpha:")
    shutil.rmtree(wheels)
    done = cli("run", job)
    assert done.returncode == 0 and "1 package, is there already" in done.stdout, done.text


@pytest.mark.ci
@pytest.mark.parametrize("text", ["alpha==7\n", "-r no.txt\n", "alpha; pythn > '3'\n", "name: x\ndependencies:\n"])
def test_a_job_with_an_odd_requirements_file_creates_nothing(cli: Cli, text: str) -> None:
    wheel(cli.directory / "wheels", "alpha")
    (cli.directory / "requirements.txt").write_text(text)
    done = cli("run", cli.job(ALPHA.format(wheels=f"file://{cli.directory}/wheels")))
    assert done.returncode == 64 and "requirements: requirements.txt:" in done.stderr, done.text
    assert cli.lived() == 0 and cli.requests("nodes.create") == []
