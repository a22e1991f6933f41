"""What a start imports: nothing heavy without need; and the Python 3.10 of TPU VM images, on which what is shipped runs."""

import importlib.util
import json
import re
import subprocess
import sys
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from orchestrator.cli.command_table import COMMANDS, LIGHT, children
from orchestrator.hosts.ssh import agent
from orchestrator.job import job_spec, train_keys
from orchestrator.job.json_schema import Section
from orchestrator.vm.agent import chips, host, packages
from orchestrator.vm.buckets.manifest import MEASURED
from payload import artifacts, config
from tests import ROOT
from tests.unit.test_imports import is_within
from tests.waiting import ran

TORCH = {"numpy", "torch", "torch_xla", "torch_tpu"}


def vermin(target: str, *paths: Path) -> subprocess.CompletedProcess[str]:
    """As `make lint` calls it. 0: nothing in these files needs a newer Python."""
    pytest.importorskip("vermin", reason="needs vermin (the `test` extra)")
    code = "import vermin; vermin.main()"
    return ran([sys.executable, "-c", code, f"-t={target}-", "--violations", "--no-tips", *paths])


@pytest.mark.parametrize(
    ("folder", "version"),
    [("payload", "3.10"), ("jobs", "3.10"), ("orchestrator/vm", "3.8"), ("orchestrator/promise/watchdog.py", "3.8")],
)
def test_nothing_that_is_shipped_needs_a_newer_python_than_a_tpu_vm_has(folder: str, version: str) -> None:
    found = vermin(version, ROOT / folder)
    assert found.returncode == 0, found.stdout


def test_nor_a_method_of_text_that_python_3_8_lacks() -> None:
    """vermin does not know what is text."""
    lacking = re.compile(r"\.remove(?:prefix|suffix)\(")
    files = (ROOT / "orchestrator" / "vm").rglob("*.py")
    assert [path.name for path in files if lacking.search(path.read_text())] == []


def test_nor_does_what_unpacks_the_agent_there(tmp_path: Path) -> None:
    (tmp_path / "boot.py").write_text(agent.BOOT + agent.PROGRAM)
    found = vermin("3.8", tmp_path)
    assert found.returncode == 0, found.stdout


def test_what_only_a_newer_python_has_is_found_by_name(tmp_path: Path) -> None:
    (tmp_path / "newer.py").write_text(
        "import hashlib\n\n\ndef of(file):\n    return hashlib.file_digest(file, 'md5')\n"
    )
    found = vermin("3.10", tmp_path)
    assert found.returncode == 1 and "'hashlib.file_digest' member requires !2, 3.11" in found.stdout


IMPORT_EACH = """
import importlib, json, pathlib, sys
missing = {}
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing[name] = error.name
print(json.dumps(missing))
"""


def test_every_module_of_the_payload_loads_on_python_3_10_as_far_as_torch_is_there(python310: str) -> None:
    modules = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in sorted(ROOT.glob("payload/**/*.py"))]
    argv = [python310, "-c", IMPORT_EACH, *modules]
    done = ran(argv, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    missing = json.loads(done.stdout)
    assert set(missing.values()) <= TORCH
    assert not {"payload.__main__", "payload.launch.placement", "payload.config", "payload.failures"} & set(missing)


@pytest.mark.parametrize(("backend", "words"), [
    ("tpu", "error: backend: tpu needs Python 3.11 or newer, and this is 3.10."),
    ("cpu", "error: numpy is not installed: pip install 'torch==2.9.0' 'torch_xla==2.9.0'"),
])  # fmt: skip
def test_what_python_3_10_lacks_for_a_training_is_one_line(
    python310: str, tmp_path: Path, backend: str, words: str
) -> None:
    config = tmp_path / "train.json"
    config.write_text(json.dumps({"backend": backend}))
    # -S: without any packages, whatever is installed there.
    argv = [python310, "-S", "-m", "payload", "--config", str(config)]
    done = ran(argv, cwd=ROOT)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(words) and done.stderr.count("\n") == 1


ABSENT = object()


def test_the_payload_knows_the_files_that_tpujob_writes_beside_a_training() -> None:
    assert artifacts.OF_TPUJOB == (chips.NAME, host.NAME, packages.NAME)
    assert {f"artifacts/{name}" for name in artifacts.OF_TPUJOB} == MEASURED


def sides(model: type[Section], dataclass: type) -> tuple[dict[str, object], dict[str, object]]:
    """Key → default on the client and in the payload; sections are compared by themselves."""
    client = {name: field.get_default(call_default_factory=True) for name, field in model.model_fields.items()}
    payload = {field.name: field.default if field.default is not MISSING else ABSENT for field in fields(dataclass)}
    for side in (client, payload):
        side.pop("emulated", None)
    return client, payload


def test_the_client_writes_the_keys_and_defaults_that_the_payload_reads() -> None:
    for section, read in (
        (train_keys.TrainSection, config.Config),
        (train_keys.EmulatedSection, config.EmulatedConfig),
    ):
        client, payload = sides(section, read)
        assert client == payload


def test_a_whole_default_section_is_accepted_by_the_payload() -> None:
    written = job_spec.load("train:\n", path="x.yaml").train
    parsed = config.parse(written.model_dump(mode="json"))
    assert (parsed.model, parsed.batch_size, parsed.cores) == ("mnist_cnn", 128, "all")


CLOUD_AND_SSH = {"google", "grpc", "requests", "fabric", "paramiko", "cryptography", "aiohttp", "asyncssh", "asyncio"}
SCIENCE = {"torch", "torch_xla", "numpy"}
STATE = {"pydantic", "yaml", "sqlite3"}
HEAVY = {"rich", "jinja2"} | CLOUD_AND_SSH | SCIENCE | STATE
OFTEN = ("run", "list", "emulator")  # each command is a process: the second tier starts the others
MAIN = "import sys; from orchestrator.cli.main import main; sys.argv[0] = 'tpujob'; main()"


def imported(code: str, *argv: str) -> set[str]:
    """Every module that a fresh interpreter imports to run the code; the run must succeed."""
    done = ran([sys.executable, "-X", "importtime", "-c", code, *argv], cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in lines}


def heavy(modules: set[str], of: set[str] = HEAVY) -> list[str]:
    return sorted(name for name in modules if is_within(name, of))


@pytest.fixture
def empty_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_CONFIG_HOME", "CLOUDSDK_CONFIG", "TPUJOB_STATE_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("TPUJOB_CLOUD", "emulated")


@pytest.mark.parametrize("argv", [("--help",), ("-h",), ("--version",), ("emulator", "--help")])
def test_a_command_that_is_not_called_is_not_imported(argv: tuple[str, ...]) -> None:
    modules = imported(MAIN, *argv)
    of_calls = {f"orchestrator.{name}" for name in ("promise", "report", "api.session.events")}
    assert heavy(modules, HEAVY | of_calls) == []
    assert [name for name in modules if name.startswith("orchestrator.cli.commands.")] == []


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in OFTEN else pytest.mark.exhaustive) for name in COMMANDS]
)
def test_the_help_of_a_command_asks_for_neither_cloud_nor_ssh_nor_torch(name: str) -> None:
    assert heavy(imported(MAIN, *name.split(), "--help"), HEAVY - STATE) == []


@pytest.mark.parametrize(
    "argv", [("list",), ("status",), ("offers",), ("offers", "--type", "v6e-8"), ("emulator", "status")]
)
@pytest.mark.usefixtures("empty_state")
def test_a_light_command_without_state_imports_of_heavy_modules_sqlite_alone(argv: tuple[str, ...]) -> None:
    modules = imported(MAIN, *argv)
    assert ("typer" in modules) == (" ".join(argv) not in LIGHT)
    assert heavy(modules, HEAVY - {"sqlite3"}) == []
    assert not any(is_within(name, {"orchestrator.job.job_spec"}) for name in modules)


# For a job that runs, for what is owed, and to ask a cloud: each costs a quick command milliseconds.
UNNEEDED = {"concurrent", "email", "hashlib", "http", "logging", "ssl", "subprocess"} | {
    f"orchestrator.{name}"
    for name in (
        *(
            "api.jobs.job",
            "api.session.left_keys",
            "api.session.shown_logs",
            "capacity.capacity_request",
            "hosts",
            "run",
        ),
        *("places.place", "places.preparation", "places.vms.plans", "promise.effects.base", "promise.effects.cloud"),
        *("promise.lease.absence", "promise.lease.changes", "promise.lease.claim_labels", "promise.lease.cloud_api"),
        *("promise.lease.network", "promise.obtain", "promise.recover", "promise.release", "report.files", "vm"),
    )
}
# For a line about the work, and to ask whether the emulator runs.
QUIET = {"orchestrator.api.session.events", "cloud_tpu_emulator", "socket"}


@pytest.mark.parametrize(
    ("argv", "unneeded"),
    [
        (("list",), UNNEEDED | QUIET | {"orchestrator.catalog"}),
        (("status",), UNNEEDED),
        (("offers",), UNNEEDED | QUIET),
    ],
)
@pytest.mark.usefixtures("empty_state")
def test_a_quick_command_imports_of_tpujob_itself_what_it_shows(argv: tuple[str, ...], unneeded: set[str]) -> None:
    assert heavy(imported(MAIN, *argv), unneeded) == []


def test_what_it_does_without_is_called_so() -> None:
    assert [name for name in UNNEEDED | QUIET if importlib.util.find_spec(name) is None] == []


def test_a_heavy_import_would_be_noticed() -> None:
    assert "asyncio" in heavy(imported("import asyncio"))


def test_every_command_that_is_often_asked_is_one() -> None:
    assert set(OFTEN) <= set(children(""))
