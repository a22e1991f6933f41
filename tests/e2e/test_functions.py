"""Functions that run on a TPU, from a script as its author starts it and in a real Jupyter kernel."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.cli_fixture import Tpujob, hear_signals, is_deaf
from tests.e2e.install.test_python_api import python, succeeded
from tests.waiting import HANG_S, until
from tests.wheels import wheel


def script(tpujob: Tpujob, path: Path) -> subprocess.Popen[str]:
    return tpujob.start(str(path), program=(sys.executable,), env={"TPUJOB_CLOUD": "emulated"})


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
    process = script(tpujob, path)
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
    again = tpujob("run", "--again", "fit")
    assert again.returncode == 64 and "a function is called again from Python" in again.stderr
    assert [*tpujob.directory.glob("runs/*/again.tar.gz")] == [], "its arguments may be secret"


@pytest.mark.ci
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
    said = succeeded(python(tpujob, code, cwd=project, env={"PYTHONPATH": f"{project}:{ROOT}"}))
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
    assert succeeded(script(tpujob, path)) == "2.5\n"


MAPS = """
import sys
import tpujob

@tpujob.function("v5e-8", zone="us-central1-a")
def half(x):
    import os
    print("on", os.environ["TPU_NAME"], flush=True)
    return {"half": x / 2}

print(half.map({"x": [4, 3, 2, 1]}, parallel=2))
print(half.map([(4,), {"x": 1}, (0,)]))
"""


def test_a_map_runs_its_calls_over_slices_that_are_used_again_and_does_none_twice(tpujob: Tpujob) -> None:
    path = tpujob.directory / "maps.py"
    path.write_text(MAPS)
    process = script(tpujob, path)
    out, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, err
    assert out.splitlines() == [str([{"half": x / 2} for x in (4, 3, 2, 1)]), str([{"half": x / 2} for x in (4, 1, 0)])]
    assert tpujob.lived() == 3 and tpujob.alive() == [], "two for four calls, one for the call that was not made before"
    on = re.findall(r"^(x=\d) worker0 \| on (\S+)$", err, re.MULTILINE)
    assert sorted(call for call, _ in on) == ["x=0", "x=1", "x=2", "x=3", "x=4"] and len({name for _, name in on}) == 3
    assert "\nx\t4\t1\t0\n" in tpujob("compare", "half").stdout
    (figures,) = tpujob.directory.glob("runs/half-1-*/worker0/artifacts/metrics.jsonl")
    assert figures.read_text() == '{"half": 2.0}\n'


manager = pytest.importorskip("jupyter_client.manager", reason="needs ipykernel (the `test` extra)")
pytest.importorskip("ipykernel", reason="needs ipykernel (the `test` extra)")


@dataclass
class Shown:
    """What a cell showed."""

    streams: dict[str, str] = field(default_factory=lambda: {"stdout": "", "stderr": ""})
    displays: dict[str, str] = field(default_factory=dict)  # by their ids, as they were drawn last
    value: str = ""
    error: str = ""  # "ValueError: no"
    traceback: str = ""

    def add(self, message: dict[str, Any]) -> None:
        kind, content = message["header"]["msg_type"], message["content"]
        if kind == "stream":
            self.streams[content["name"]] += content["text"]
        elif kind in ("display_data", "update_display_data"):
            self.displays[content["transient"]["display_id"]] = content["data"]["text/plain"]
        elif kind == "execute_result":
            self.value = content["data"]["text/plain"] + content["data"].get("text/html", "")
        elif kind == "error":
            self.error, self.traceback = f"{content['ename']}: {content['evalue']}", "\n".join(content["traceback"])


class Notebook:
    def __init__(self, kernel: Any, client: Any) -> None:
        self.kernel, self._client = kernel, client

    def cell(self, code: str, shown: Shown | None = None) -> Shown:
        """Run the code as one cell, to its end."""
        shown = shown or Shown()
        self._client.execute_interactive(code, timeout=HANG_S, output_hook=shown.add)
        return shown


@pytest.fixture
def notebook(tpujob: Tpujob) -> Iterator[Notebook]:
    ours = {
        name: str(tpujob.directory / name.lower()) for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR")
    }
    env = {**os.environ, **tpujob.env, **ours, "TPUJOB_CLOUD": "emulated", "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    kernel = manager.KernelManager(kernel_name="python3", transport="ipc", ip=str(tpujob.directory / "k"))
    kernel.start_kernel(env=env, cwd=str(tpujob.directory), preexec_fn=hear_signals if is_deaf() else None)
    client = kernel.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=HANG_S)
        yield Notebook(kernel, client)
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)


FIT = """
@tpujob.function("v5e-8")
def fit(x: np.ndarray, fails=False):
    import math
    print("hello from a worker")
    if fails:
        raise ValueError("no")
    return {"pi": round(math.pi, x)}
"""
GLOBAL = """
@tpujob.function("v5e-8")
def lr():
    return LR
"""
WAIT = """
@tpujob.function()
def wait():
    import time
    print("begun", flush=True)
    time.sleep(600)
"""


@pytest.mark.ci
def test_a_cell_is_refused_repaired_called_fails_and_is_interrupted(notebook: Notebook, tpujob: Tpujob) -> None:
    assert not notebook.cell("import tpujob, math as np\nnp.ndarray = int").error
    refused = notebook.cell(FIT.replace("math.pi", "np.pi"))
    assert (
        "uses what is outside of it: np; a function of a script or notebook travels as its own source" in refused.error
    )
    assert "write `import math as np` inside of it" in refused.traceback
    assert tpujob.lived() == 0

    assert not notebook.cell(FIT).error
    called = notebook.cell("fit(2)")
    assert called.value == "{'pi': 3.14}" and called.streams == {"stdout": "", "stderr": ""}, called
    (display,) = called.displays.values()
    assert "worker0 | hello from a worker\n" in display and "released tpujob-" in display
    run = notebook.cell(f"LR = 0.5\n{GLOBAL}\nLR = 0.25\ntpujob.Client(on_event=print).run(lr.job())")
    assert not run.displays and 'role="img"' not in run.value and ">succeeded</span>" in run.value, run
    assert "worker0/artifacts" in run.streams["stdout"] and notebook.cell("lr.value(_)").value == "0.25"

    failed = notebook.cell("fit(2, fails=True)")
    assert failed.error.startswith("RemoteFunctionError: ValueError: no ("), failed
    assert 'raise ValueError("no")' in failed.traceback

    assert not notebook.cell(WAIT).error
    shown = Shown()
    cell = threading.Thread(target=notebook.cell, args=["wait()", shown])
    cell.start()
    until(lambda: "worker0 | begun" in str(shown.displays) or not cell.is_alive(), "the function to begin")
    notebook.kernel.interrupt_kernel()
    cell.join(HANG_S)
    assert shown.error.startswith("Interrupted: interrupted by Ctrl-C"), shown
    assert tpujob.lived() == 4 and tpujob.alive() == []
