"""The console script `tpujob`. It imports nothing of tpujob before it can say what a Ctrl-C meanwhile means."""

import os
import sys


def main() -> None:
    """Run the command of `sys.argv` and end the process. Exit codes: docs/cli.md."""
    try:
        from orchestrator.cli.dispatching import run  # within reach of the handler
    except KeyboardInterrupt:
        print("stop     Ctrl-C: no slice was created or deleted", file=sys.stderr, flush=True)
        os._exit(130)
    run()
