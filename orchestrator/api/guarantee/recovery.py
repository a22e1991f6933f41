"""`python -m orchestrator.api.guarantee.recovery DIRECTORY`, started by the guardian: finish every overdue teardown.

Its stderr is the guardian's log. Exits with 0 once every teardown is proven, else with 75.
"""

import os
import sys
from pathlib import Path

from orchestrator import settings
from orchestrator.api import results
from orchestrator.api.session.events import Alert, Event, Failure, Notice
from orchestrator.api.session.reporter import Reporter
from orchestrator.api.session.session import Session
from orchestrator.promise.lease.run_and_attempt import RunRecord

BUDGET_S = 3600.0


def main() -> None:
    target = settings.resolve(None, None, os.environ)
    session = Session(target, Path(sys.argv[1]), Reporter(_log), light=True, after_end=after_end)
    session.recover(budget_s=BUDGET_S)
    sys.stderr.flush()
    os._exit(session.exit_code())  # abandoned network threads must not keep the process


def after_end(session: Session, run: RunRecord) -> None:
    """Write the page of a run whose process was killed."""
    results.pages.of_another_process(session, run)


def _log(event: Event) -> None:
    if isinstance(event, Notice):
        print(f"{event.stage:<8} {event.text}", file=sys.stderr, flush=True)
    elif isinstance(event, Failure):
        print(f"error    {event.message}", file=sys.stderr, flush=True)
    elif isinstance(event, Alert):
        print(event.text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
