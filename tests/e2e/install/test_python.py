"""What a job installs lands on its worker, never in tpujob's own environment; and what it finds there."""

import importlib.util

import pytest

from tests.cli_fixture import Cli, Tpujob
from tests.wheels import wheel

HAS_TORCH = importlib.util.find_spec("torch") is not None
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
@pytest.mark.skipif(not HAS_TORCH, reason="needs the `local` extra")
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
