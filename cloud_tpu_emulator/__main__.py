"""`python -m cloud_tpu_emulator --state-dir DIR [--port 0]`: the daemon, in the foreground or detached."""

import argparse
import logging
import os
import sys
from pathlib import Path

OPEN_FILES_EACH = 8  # of a worker: two listeners, connections to them, and the pipes of a command
OPEN_FILES = 1024 * OPEN_FILES_EACH


def main() -> int:
    """Run the daemon. Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m cloud_tpu_emulator", description="An embedded Cloud TPU.")
    parser.add_argument("--state-dir", type=Path, required=True, help="directory for its state, token and VMs")
    parser.add_argument("--host", default="127.0.0.1", help="a loopback address (default: %(default)s)")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one (default: %(default)s)")
    parser.add_argument("--detach", action="store_true", help="return at once, and run in the background")
    parser.add_argument(
        "--ready-fd", type=int, help="a file descriptor that is closed when the daemon accepts requests"
    )
    parser.add_argument("--end-fd", type=int, help="a file descriptor: the daemon ends when it reads as closed")
    options = parser.parse_args()
    if options.detach:
        if os.fork():
            os._exit(0)
        os.setsid()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    logging.getLogger("asyncssh").setLevel(logging.WARNING)
    from cloud_tpu_emulator.daemon import daemon
    from cloud_tpu_emulator.model import state
    from orchestrator.system import open_files

    if (limit := open_files.allow(OPEN_FILES)) < OPEN_FILES:
        workers = limit // OPEN_FILES_EACH
        logging.warning("the hard limit of open files is %d, enough for some %d workers: `ulimit -Hn`", limit, workers)
    try:
        daemon.run(options.state_dir, options.host, options.port, options.ready_fd, options.end_fd)
    except (state.AlreadyRunning, state.DamagedState, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
