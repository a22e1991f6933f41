"""`python -m orchestrator.api.guarantee.recovery DIRECTORY`, started by the guardian: finish every overdue teardown.

Its stderr is the guardian's log. Exits with 0 once every teardown is proven, else with 75.
"""

import os
import sys
from pathlib import Path

from orchestrator import settings
from orchestrator.api.session.events import Alert, Event, Failure, Notice, Reporter
from orchestrator.api.session.session import Session

BUDGET_S = 3600.0


def main() -> None:
    session = Session(settings.resolve(None, None, os.environ), Path(sys.argv[1]), Reporter(_log), light=True)
    session.recover(budget_s=BUDGET_S)
    sys.stderr.flush()
    os._exit(session.exit_code())  # abandoned network threads must not keep the process


def _log(event: Event) -> None:
    if isinstance(event, Notice):
        print(f"{event.stage:<8} {event.text}", file=sys.stderr, flush=True)
    elif isinstance(event, Failure):
        print(f"error    {event.message}", file=sys.stderr, flush=True)
    elif isinstance(event, Alert):
        print(event.text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
