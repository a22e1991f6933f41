"""Functions that run on a TPU, from a script as its author starts it: values, errors, Ctrl-C, hostile workers."""

import json
import re
import signal
import sys
from pathlib import Path

import pytest

import tpujob as api
from tests import ROOT
from tests.cli_fixture import Tpujob
from tests.e2e.install.test_python_api import python, script, succeeded
from tests.waiting import HANG_S
from tests.wheels import wheel

SCRIPT = '''
import tpujob
LR = 0.5

@tpujob.function("v5litepod-16", zone="us-central1-a", env={"WORD": "hello"})
def fit(x: int, lr: float = LR, *, fails: bool = False) -> dict[str, object]:
    """On four hosts."""
    import os
    print(os.environ["WORD"], "from", os.environ["TPUJOB_WORKER"])
    with open(os.path.join(os.environ["TPUJOB_ARTIFACTS"], "big.bin"), "wb") as file:
        file.write(b"x" * 1000)
    if fails:
        raise ValueError(f"no: {x}")
    return {"product": x * lr, "worker": int(os.environ["TPUJOB_WORKER"])}

if __name__ == "__main__":
    print(fit(3))
    try:
        fit(-1, fails=True)
    except tpujob.RemoteFunctionError as error:
        print(error.type_name, error.line, error.result.released, error.result.state)
        raise
'''


@pytest.mark.ci
def test_a_script_gets_the_value_of_its_function_and_its_error_and_shows_its_log(tpujob: Tpujob) -> None:
    path = tpujob.directory / "script.py"
    path.write_text(SCRIPT)
    process = script(tpujob, path, TPUJOB_CLOUD="emulated")
    out, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 1, err
    assert out == "{'product': 1.5, 'worker': 0}\nValueError 13 True failed\n", err
    for worker in range(2):
        assert f"worker{worker} | hello from {worker}\n" in err
    assert "released tpujob-" in err
    last = err[err.rindex("RemoteFunctionError: ") :]
    assert last.startswith("RemoteFunctionError: ValueError: no: -1 (script.py:13, worker")
    assert 'script.py", line 13, in fit\n    raise ValueError(f"no: {x}")\nValueError: no: -1' in last
    sizes = [path.stat().st_size for path in tpujob.directory.glob("runs/fit-*/worker0/artifacts/big.bin")]
    assert sizes == [1000, 1000]
    assert tpujob.lived() == 2 and tpujob.alive() == []


def test_a_function_of_a_module_is_planned_submitted_and_its_value_asked_for_later(tpujob: Tpujob) -> None:
    project = tpujob.directory / "project"
    (project / "mine").mkdir(parents=True)
    (project / "mine" / "__init__.py").write_text("FACTOR = 2\n")
    (project / "mine" / "model.py").write_text(
        "import tpujob\nfrom mine import FACTOR\n\n@tpujob.function('v5e-8')\ndef double(x):\n    return FACTOR * x\n"
    )
    code = """
import tpujob
from mine.model import double
client = tpujob.Client("emulated", on_event=lambda event: None)
print(client.plan(double.job(1)).candidates[0].accelerator_type)
run = client.submit(double.job(21))
print(double.value(run), client.call(double, 4), double.local(5))
"""
    said = succeeded(python(tpujob, code, project, PYTHONPATH=f"{project}:{ROOT}"))
    assert said == "v5litepod-8\n42 8 10\n"
    assert tpujob.alive() == []


REQUIRES = """
import tpujob

@tpujob.function("v5e-8", requirements=["alpha"], env={"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "WHEELS"})
def version():
    import alpha
    return alpha.__version__

print(version())
"""


@pytest.mark.ci
def test_a_function_imports_what_its_requirements_install(tpujob: Tpujob) -> None:
    wheel(tpujob.directory / "wheels", "alpha", "2.5")
    path = tpujob.directory / "requires.py"
    path.write_text(REQUIRES.replace("WHEELS", f"file://{tpujob.directory}/wheels"))
    assert succeeded(script(tpujob, path, TPUJOB_CLOUD="emulated")) == "2.5\n"


MAPS = """
import sys
import tpujob

@tpujob.function("v5e-8", zone="us-central1-a")
def half(x, fails=()):
    import os
    print("on", os.environ["TPU_NAME"], flush=True)
    if x in fails:
        raise ValueError(f"not {x}")
    return {"half": x / 2}

if sys.argv[1] == "values":
    print(half.map({"x": [4, 3, 2, 1]}, parallel=2))
    print(half.map([(4,), {"x": 1}, (0,)]))
elif sys.argv[1] == "failures":
    calls = [{"x": x, "fails": [2, 3]} for x in (1, 2, 3)]
    found = half.map(calls, return_exceptions=True)
    print(found[0], [type(each).__name__ for each in found[1:]], found[1].line, found[2].result.state)
    half.map(calls)
"""


def test_a_map_runs_its_calls_over_slices_that_are_used_again_and_does_none_twice(tpujob: Tpujob) -> None:
    path = tpujob.directory / "maps.py"
    path.write_text(MAPS)
    process = script(tpujob, path, "values", TPUJOB_CLOUD="emulated")
    out, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, err
    assert out.splitlines() == [str([{"half": x / 2} for x in (4, 3, 2, 1)]), str([{"half": x / 2} for x in (4, 1, 0)])]
    assert tpujob.lived() == 3 and tpujob.alive() == [], "two for four calls, one for the call that was not made before"
    on = re.findall(r"^(x=\d) worker0 \| on (\S+)$", err, re.MULTILINE)
    assert sorted(call for call, _ in on) == ["x=0", "x=1", "x=2", "x=3", "x=4"] and len({name for _, name in on}) == 3
    assert "\nx\t4\t1\t0\n" in tpujob("compare", "half").stdout
    (figures,) = tpujob.directory.glob("runs/half-1-*/worker0/artifacts/metrics.jsonl")
    assert figures.read_text() == '{"half": 2.0}\n'


@pytest.mark.ci
def test_a_call_of_a_map_that_fails_stops_no_other_one(tpujob: Tpujob) -> None:
    path = tpujob.directory / "maps.py"
    path.write_text(MAPS)
    process = script(tpujob, path, "failures", TPUJOB_CLOUD="emulated")
    out, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 1
    assert out == "{'half': 0.5} ['RemoteFunctionError', 'RemoteFunctionError'] 10 failed\n", err
    last = err[err.rindex("RemoteFunctionError: ") :]
    assert last.startswith("RemoteFunctionError: ValueError: not 2 (maps.py:10, worker0)")
    assert "2 of 3 calls failed: x=2, x=3; what the others returned is kept" in last
    assert tpujob.alive() == []


WAITS = """
import tpujob

@tpujob.function("v5e-8")
def wait():
    import time
    print("begun", flush=True)
    time.sleep(600)

try:
    wait()
except tpujob.Interrupted as error:
    print(error.result.released)
"""


@pytest.mark.ci
def test_ctrl_c_in_a_call_releases_its_slice(tpujob: Tpujob) -> None:
    path = tpujob.directory / "waits.py"
    path.write_text(WAITS)
    process = script(tpujob, path, TPUJOB_CLOUD="emulated")
    assert process.stderr is not None and any("worker0 | begun" in line for line in process.stderr)
    process.send_signal(signal.SIGINT)
    assert succeeded(process) == "True\n"
    assert tpujob.lived() == 1 and tpujob.alive() == []


# -- a worker that lies ------------------------------------------------------------------------------------------------

HOSTILE = """
import os, pickle, sys
def f(what, text):
    place = os.environ["TPUJOB_ARTIFACTS"]
    with open(os.path.join(place, f"function-{what}.json"), "w") as file:
        file.write(text)
    os._exit(0 if what == "result" else 3)
"""


@pytest.mark.ci
@pytest.mark.parametrize(
    "text",
    [
        '{"schema": 1, "value": NaN}',
        "cos\nsystem\n(S'touch /tmp/owned'\ntR.",
        "__import__('os').system('touch /tmp/owned')",
    ],
    ids=["nan", "pickle", "python"],
)
def test_a_result_that_is_none_is_an_error_and_never_run(
    tpujob: Tpujob, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    f = hostile(tpujob, monkeypatch)
    with pytest.raises(api.ArtifactError, match=r"function-result\.json is not JSON that a function leaves"):
        api.Client("emulated", on_event=lambda event: None).call(f, "result", text)
    assert tpujob.alive() == [] and not Path("/tmp/owned").exists()


def test_an_error_with_escapes_is_inert(tpujob: Tpujob, monkeypatch: pytest.MonkeyPatch) -> None:
    evil = {
        "schema": 1,
        "type": "\x1b[2J",
        "message": "\x1b]52;c;eA==\x07hi",
        "traceback": "\x1b[31m\u202eT",
        "file": "",
        "line": 0,
    }
    with pytest.raises(api.RemoteFunctionError) as raised:
        api.Client("emulated", on_event=lambda event: None).call(
            hostile(tpujob, monkeypatch), "error", json.dumps(evil)
        )
    assert (raised.value.message, raised.value.traceback, raised.value.rc) == ("Exception: hi (worker0)", "T", 3)
    assert raised.value.result.error is raised.value and tpujob.alive() == []


def hostile(tpujob: Tpujob, monkeypatch: pytest.MonkeyPatch) -> object:
    project = tpujob.directory / "hostile"
    project.mkdir()
    (project / "hostile_worker.py").write_text(HOSTILE)
    monkeypatch.syspath_prepend(str(project))
    monkeypatch.delitem(sys.modules, "hostile_worker", raising=False)
    import hostile_worker  # type: ignore[import-not-found]

    return hostile_worker.f
