"""The queue of jobs, as a user and a runner see it: `door` is `client.queue`, `queue` what it does, `hands` what a runner does.

The record and what is decided from it are in `orchestrator.queue`.
"""

from typing import TYPE_CHECKING

from orchestrator.system.lazy import modules_of

if TYPE_CHECKING:
    from orchestrator.api.queue import door as door
    from orchestrator.api.queue import queue as queue
else:
    __getattr__ = modules_of(__name__)
