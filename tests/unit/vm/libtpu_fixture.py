"""A stand-in for the package libtpu, as strict as that of 0.0.21, which was read and run for it.

`libtpu.sdk.tpumonitoring` there is native: `get_metric` takes one positional argument, its `data()` is a list of text, empty
while nothing is loaded on the chips, a name that it does not know ends the process with SIGABRT, and once it was used SIGTERM
prints a stack.
"""

from pathlib import Path

SDK = """
import json, os, pathlib, signal, sys, time

class LibtpuSdkMetric:
    def __init__(self, values): self._values = values
    def data(self): return self._values
    def description(self): return ""

def _print_stack(*_):
    print("a stack", file=sys.stderr, flush=True)
    os._exit(99)

class _Monitoring:
    _used = False
    def list_supported_metrics(self):
        return ["tensorcore_util", "duty_cycle_pct", "hbm_capacity_total", "hbm_capacity_usage"]
    def get_metric(self, arg, /):
        if arg not in self.list_supported_metrics():
            os.abort()
        if not self._used:
            self._used = True
            signal.signal(signal.SIGTERM, _print_stack)
        found = json.loads(pathlib.Path(os.environ["STAND_IN"]).read_text())
        answer = found.get(arg, [])
        if answer == "hang":
            pathlib.Path(os.environ["STAND_IN"] + ".hangs").touch()
            time.sleep(1000)
        if isinstance(answer, str):
            raise RuntimeError(answer)
        return LibtpuSdkMetric(answer)

tpumonitoring = _Monitoring()
"""


def install(directory: Path) -> Path:
    """Write the package below `directory`, for PYTHONPATH, and return that."""
    package = directory / "libtpu"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "sdk.py").write_text(SDK)
    return directory
