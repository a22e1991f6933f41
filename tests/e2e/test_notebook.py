"""Functions in a real Jupyter kernel: its cells are their source, its output shows their log, its interrupt ends them."""

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.cli_fixture import Tpujob, hear_signals, is_deaf
from tests.waiting import HANG_S, until

manager = pytest.importorskip("jupyter_client.manager", reason="needs ipykernel (the `test` extra)")
pytest.importorskip("ipykernel", reason="needs ipykernel (the `test` extra)")


@dataclass
class Shown:
    """What a cell showed."""

    streams: dict[str, str] = field(default_factory=lambda: {"stdout": "", "stderr": ""})
    value: str = ""
    error: str = ""  # "ValueError: no"
    traceback: str = ""

    def add(self, message: dict[str, Any]) -> None:
        kind, content = message["header"]["msg_type"], message["content"]
        if kind == "stream":
            self.streams[content["name"]] += content["text"]
        elif kind == "execute_result":
            self.value = content["data"]["text/plain"]
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
    assert called.value == "{'pi': 3.14}" and called.streams["stdout"] == "", called
    assert "worker0 | hello from a worker\n" in called.streams["stderr"]
    assert "released tpujob-" in called.streams["stderr"]

    failed = notebook.cell("fit(2, fails=True)")
    assert failed.error.startswith("RemoteFunctionError: ValueError: no ("), failed
    assert 'raise ValueError("no")' in failed.traceback

    assert not notebook.cell(WAIT).error
    shown = Shown()
    cell = threading.Thread(target=notebook.cell, args=["wait()", shown])
    cell.start()
    until(lambda: "worker0 | begun" in shown.streams["stderr"] or not cell.is_alive(), "the function to begin")
    notebook.kernel.interrupt_kernel()
    cell.join(HANG_S)
    assert shown.error.startswith("Interrupted: interrupted by Ctrl-C"), shown
    assert tpujob.lived() == 3 and tpujob.alive() == []
