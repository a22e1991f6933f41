"""Held slices, the status of all slices, and the offers: `up`, `down`, `stop`, `start`, `extend`, `ssh`, `status`, `offers`.

The commands of `tpujob` and the Python API call this package. Nothing here prints or reads arguments: what happens is an event
of the session's reporter, a frozen result, or a TpujobError.
"""

from typing import TYPE_CHECKING

from orchestrator.system.lazy import modules_of

if TYPE_CHECKING:
    from orchestrator.api.slices import copies as copies
    from orchestrator.api.slices import down as down
    from orchestrator.api.slices import lending as lending
    from orchestrator.api.slices import offers as offers
    from orchestrator.api.slices import shell as shell
    from orchestrator.api.slices import status as status
    from orchestrator.api.slices import up as up
else:
    __getattr__ = modules_of(__name__)
