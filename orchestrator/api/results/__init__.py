"""Runs of this machine as they are recorded: the list of them, one or several in full, their logs, and their names.

The commands of the group `results` and the Python API call this package. Nothing here prints or reads arguments.
"""

from typing import TYPE_CHECKING

from orchestrator.system.lazy import modules_of

if TYPE_CHECKING:
    from orchestrator.api.results import costs as costs
    from orchestrator.api.results import history as history
    from orchestrator.api.results import logs as logs
    from orchestrator.api.results import pages as pages
    from orchestrator.api.results import reports as reports
else:
    __getattr__ = modules_of(__name__)
