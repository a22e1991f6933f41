"""Jobs: plan, run, follow, cancel, collect and compare them. Every function takes a session and typed values.

The commands of `tpujob` and the Python API call this package. Nothing here prints or reads arguments: what happens is an event
of the session's reporter, a frozen result, or a TpujobError.
"""

from typing import TYPE_CHECKING

from orchestrator.system.lazy import modules_of

if TYPE_CHECKING:
    from orchestrator.api.jobs import checking as checking
    from orchestrator.api.jobs import ending as ending
    from orchestrator.api.jobs import job as job
    from orchestrator.api.jobs import new_job_file as new_job_file
    from orchestrator.api.jobs import planning as planning
    from orchestrator.api.jobs import repeating as repeating
    from orchestrator.api.jobs import results as results
    from orchestrator.api.jobs import runs as runs
else:
    __getattr__ = modules_of(__name__)
