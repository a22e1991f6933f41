"""The guarantee from outside a run: gc, its timer, recovery for the guardian, health checks, and `forget`.

The commands of `tpujob`, the Python API and the guardian call this package. `gc` and the health checks work
without a ledger and without google-cloud-tpu. Nothing here prints or reads arguments.
"""

from typing import TYPE_CHECKING

from orchestrator.system.lazy import modules_of

if TYPE_CHECKING:
    from orchestrator.api.guarantee import doctor as doctor
    from orchestrator.api.guarantee import forget as forget
    from orchestrator.api.guarantee import gc as gc
    from orchestrator.api.guarantee import telling as telling
    from orchestrator.api.guarantee import timers as timers
else:
    __getattr__ = modules_of(__name__)
