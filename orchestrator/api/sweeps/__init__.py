"""Sweeps: several jobs of one file, over one slice or several. Run, plan, record and show them.

`sweeps` runs them; each lane is a thread with a session of its own. As in `api/jobs`, nothing here prints or reads
arguments: what happens is an event of the session's reporter, a frozen result, or a TpujobError.
"""

from typing import TYPE_CHECKING

from orchestrator.system.lazy import modules_of

if TYPE_CHECKING:
    from orchestrator.api.sweeps import plans as plans
    from orchestrator.api.sweeps import sweeps as sweeps
else:
    __getattr__ = modules_of(__name__)
