"""What goes on now: the table of `tpujob top`, and its page, which `top --open` serves.

Nothing here opens a connection to a worker: the process of a run keeps what its workers report, and the API is asked for the
rest.
"""

from typing import TYPE_CHECKING

from orchestrator.system.lazy import modules_of

if TYPE_CHECKING:
    from orchestrator.api.live import serving as serving
    from orchestrator.api.live import tables as tables
    from orchestrator.api.live import top as top
else:
    __getattr__ = modules_of(__name__)
