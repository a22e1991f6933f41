"""What runs on a TPU VM runs on the Python of its image, 3.10, and reads the `train.json` that is shipped there."""

import json
import re
import subprocess
import sys
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from orchestrator.core.jobfile import keys, train_keys
from orchestrator.core.jobfile.json_schema import Section
from orchestrator.remote.ssh import agent
from orchestrator.vm import chips
from payload import artifacts, config
from tests import ROOT
from tests.waiting import HANG_S

TORCH = {"numpy", "torch", "torch_xla", "torch_tpu"}


def vermin(target: str, *paths: Path) -> subprocess.CompletedProcess[str]:
    """As `make lint` calls it. 0: nothing in these files needs a newer Python."""
    pytest.importorskip("vermin", reason="needs vermin (the `test` extra)")
    argv = [sys.executable, "-c", "import vermin; vermin.main()", f"-t={target}-", "--violations", "--no-tips", *paths]
    return subprocess.run(argv, capture_output=True, text=True, timeout=HANG_S, check=False)


@pytest.mark.parametrize(("folder", "version"), [("payload", "3.10"), ("jobs", "3.10"), ("orchestrator/vm", "3.8")])
def test_nothing_that_is_shipped_needs_a_newer_python_than_a_tpu_vm_has(folder: str, version: str) -> None:
    found = vermin(version, ROOT / folder)
    assert found.returncode == 0, found.stdout


def test_nor_a_method_of_text_that_python_3_8_lacks() -> None:
    """vermin does not know what is text."""
    lacking = re.compile(r"\.remove(?:prefix|suffix)\(")
    files = (ROOT / "orchestrator" / "vm").glob("*.py")
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
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=HANG_S, check=False)
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
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(words) and done.stderr.count("\n") == 1


ABSENT = object()


def test_the_payload_knows_the_file_that_the_sampler_of_tpujob_writes() -> None:
    assert artifacts.TPU_METRICS == chips.NAME


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
    written = keys.load("train:\n", path="x.yaml").train
    parsed = config.parse(written.model_dump(mode="json"))
    assert (parsed.model, parsed.batch_size, parsed.cores) == ("mnist_cnn", 128, "all")
