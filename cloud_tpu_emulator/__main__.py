"""`python -m cloud_tpu_emulator`: start what `tpujob emulator up` starts, with the same options, in the foreground."""

import argparse
import logging
import os
import sys
import threading
from pathlib import Path
from typing import Any

from cloud_tpu_emulator.daemon import control, daemon
from cloud_tpu_emulator.model import state
from orchestrator.system import open_files

OPEN_FILES_EACH = 8  # of a worker: two listeners, connections to them, and the pipes of a command
OPEN_FILES = 1024 * OPEN_FILES_EACH
SHARED = {"grpc", "grpc_port", "relay", "lend_torch", "startup_scripts"}  # with `tpujob emulator up`


def default_directory() -> Path:
    """Return the directory of `tpujob emulator`, so that both are one emulator."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(os.environ.get("TPUJOB_STATE_DIR") or Path(base) / "tpujob").expanduser() / "emulator"


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(
        prog="python -m cloud_tpu_emulator",
        description="An emulated Cloud TPU on this machine. Prints the environment for gcloud, curl and Python.",
    )
    made.add_argument("--state-dir", type=Path, default=default_directory(), help="its state (default: %(default)s)")
    made.add_argument("--host", default="127.0.0.1", help="a loopback address (default: %(default)s)")
    made.add_argument("--port", type=int, default=0, help="the REST port; 0: that of last time, or a free one")
    made.add_argument("--grpc", action="store_true", help="serve gRPC, too")
    made.add_argument("--grpc-port", type=int, default=0, help="the gRPC port; 0: a free one")
    made.add_argument("--relay", action="store_true", help="serve the relay of IAP over TLS, too")
    switch = argparse.BooleanOptionalAction
    made.add_argument("--lend-torch", action=switch, help="commands on new nodes find this machine's torch")
    made.add_argument("--startup-scripts", action=switch, help="run startup-scripts, as you, on this machine")
    made.add_argument("--detach", action="store_true", help="return when it is ready, and run in the background")
    for internal in (
        "--ready-fd",
        "--end-fd",
    ):  # of `control`: closed when ready; the daemon ends when it reads as closed
        made.add_argument(internal, type=int, help=argparse.SUPPRESS)
    return made


def main() -> int:
    """Run the emulator. Return the exit code."""
    options = parser().parse_args()
    if options.ready_fd is None and options.detach:
        return _ready(options, control.ensure_running(options.state_dir, options.port))
    if options.detach:
        if os.fork():
            os._exit(0)
        os.setsid()
    elif options.ready_fd is None:
        reading_end, options.ready_fd = os.pipe()
        threading.Thread(target=_when_ready, args=(reading_end, options), daemon=True).start()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    logging.getLogger("asyncssh").setLevel(logging.WARNING)

    if (limit := open_files.allow(OPEN_FILES)) < OPEN_FILES:
        workers = limit // OPEN_FILES_EACH
        logging.warning("the hard limit of open files is %d, enough for some %d workers: `ulimit -Hn`", limit, workers)
    try:
        daemon.run(options.state_dir, options.host, options.port, options.ready_fd, options.end_fd)
    except (state.AlreadyRunning, state.DamagedState, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _when_ready(ready: int, options: argparse.Namespace) -> None:
    os.read(ready, 1)
    if (endpoint := control.running(options.state_dir)) is not None:
        _ready(options, endpoint)


def _ready(options: argparse.Namespace, endpoint: control.Endpoint) -> int:
    """Start what the options ask for, and print the environment. Return the exit code."""
    shared: dict[str, Any] = {name: value for name, value in vars(options).items() if name in SHARED}
    try:
        control.open_more(endpoint, **shared)
    except control.DaemonRefused as error:
        print(error.message, file=sys.stderr)
        return 1
    print(control.shell_lines(endpoint, options.state_dir), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
