"""`python -m orchestrator.client.guarantee.recovery DIRECTORY`, started by the guardian: finish every overdue teardown.

Exits with 0 once every one is proven, else with 75.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from orchestrator import settings
from orchestrator.client.session import Session

BUDGET_S = 3600.0


def main() -> None:
    session = Session(settings.resolve(None, None, os.environ), Path(sys.argv[1]), light=True)
    session.recover(budget_s=BUDGET_S)
    sys.stderr.flush()
    os._exit(session.exit_code())  # abandoned network threads must not keep the process


if __name__ == "__main__":
    main()
