"""What `import tpujob` gives and costs, and what its methods refuse before they ask anything."""

import ast
import inspect
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import tpujob
from orchestrator import errors
from tests import ROOT
from tests.unit.test_import_cost import heavy, imported
from tests.unit.test_imports import imports, is_within, read

SLICE: dict[str, Any] = {"accelerator": "v5litepod-8"}


ERRORS = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)}


def test_importing_tpujob_loads_nothing_else() -> None:
    modules = imported("import tpujob")
    assert heavy(modules) == []
    assert {name for name in modules if name.startswith("orchestrator")} == {"orchestrator"}


def test_a_job_is_described_without_cloud_ssh_and_ledger() -> None:
    modules = imported("import tpujob; tpujob.Job(command='true', tpu=tpujob.Tpu(accelerator='v5e-8'))")
    assert [name for name in heavy(modules) if not name.startswith(("pydantic", "yaml"))] == []


@pytest.mark.parametrize("name", tpujob.__all__)
def test_every_name_is_there_and_documented(name: str) -> None:
    assert inspect.getdoc(getattr(tpujob, name)), f"{name} has no docstring"


def test_the_names_are_those_that_type_checkers_see() -> None:
    tree = ast.parse((ROOT / "tpujob" / "__init__.py").read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imported_names = {
        alias.asname for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names if alias.asname
    }
    assert any(alias.name == "*" for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names)
    assigned = {target.id for node in block.body if isinstance(node, ast.Assign) for target in node.targets}  # type: ignore[attr-defined]
    assert {name for name in imported_names | assigned if not name.startswith("_")} | ERRORS == set(tpujob.__all__)
    assert set(tpujob.__all__) <= set(dir(tpujob))


def test_the_public_face_knows_the_client_the_reports_and_the_errors_alone() -> None:
    found = set(imports(read(Path("tpujob/__init__.py")), "tpujob"))
    ours = {name for name in found if name.startswith("orchestrator") and name != "orchestrator.__version__"}
    assert all(is_within(name, {"orchestrator.client", "orchestrator.errors", "orchestrator.report"}) for name in ours)


def test_every_error_is_exported() -> None:
    assert set(tpujob.__all__) >= ERRORS


def test_every_public_method_is_documented_and_typed() -> None:
    for kind in (tpujob.Client, tpujob.Run, tpujob.Slice, tpujob.Job, tpujob.RunResult):
        for name, member in vars(kind).items():
            if name.startswith("_") or not inspect.isfunction(member):
                continue
            assert member.__doc__, f"{kind.__name__}.{name} has no docstring"
            assert "return" in member.__annotations__, f"{kind.__name__}.{name} has no return type"


def test_a_name_that_does_not_exist_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = tpujob.Nothing  # type: ignore[attr-defined]


def test_the_package_is_marked_as_typed() -> None:
    assert (ROOT / "tpujob" / "py.typed").exists()


@pytest.mark.parametrize(("call", "why"), [
    (lambda client, job: client.run(job, keep="5s"), "keep 5s: must be between 1m and 7d"),
    (lambda client, job: client.run(job, max_duration=timedelta(minutes=1)), "max_duration 0:01:00: must be between"),
    (lambda client, job: client.submit(job, max_duration="soon"), "max_duration soon: write numbers with units"),
    (lambda client, job: client.slice(**SLICE, wait="0s"), "wait 0s: must be between 1s and 7d"),
    (lambda client, job: client.up(idle="10s"), "idle 10s: must be between 1m and 7d"),
    (lambda client, job: client.extend("x", timedelta(days=8)), "must be between 1m and 7d"),
    (lambda client, job: client.collect("x", max_results="many"), "max_results many: write a number with a unit"),
])  # fmt: skip
def test_what_cannot_be_meant_is_refused_before_anything_is_opened(
    call: Any, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TPUJOB_STATE_DIR", str(tmp_path / "state"))
    with pytest.raises(tpujob.UserError, match=why):
        call(tpujob.Client("emulated"), tpujob.Job(command="true"))
    assert not (tmp_path / "state").exists()


def test_a_slice_exists_only_in_its_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPUJOB_STATE_DIR", str(tmp_path / "state"))
    rented = tpujob.Client("emulated").slice(**SLICE)
    for use in (lambda: rented.name, lambda: rented.hosts, lambda: rented.exec("true")):
        with pytest.raises(tpujob.UserError, match="only inside its `with` block"):
            use()
    with pytest.raises(tpujob.UserError, match="there is no command"):
        rented.exec([])
    assert not (tmp_path / "state").exists()


def test_what_a_slice_cannot_be_is_refused_where_the_block_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TPUJOB_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for options in ({"accelerator": "v5e-8", "name": "Not A Name"}, {"accelerator": "v99-8", "zone": "us-central1-a"}):
        block = tpujob.Client("emulated").slice(**options)
        with pytest.raises(tpujob.UserError), block:
            raise AssertionError("the block began")
        with pytest.raises(tpujob.UserError, match="one `with` block"), block:
            raise AssertionError("the block began")


def test_the_readme_example_imports_from_anywhere(tmp_path: Path) -> None:
    code = "import tpujob; from tpujob import Client, Job; print(tpujob.__version__, Client, Job)"
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, cwd=tmp_path, env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True, text=True,
    )  # fmt: skip
    assert "orchestrator.client.job.Job" in done.stdout
