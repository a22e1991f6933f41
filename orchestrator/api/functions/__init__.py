"""Functions that run on a TPU: `@tpujob.function`, `Client.function` and `Client.call`.

A call becomes a job whose `entry:` is `payload.functions.call`, which runs on the workers. Importing this package costs
nothing; only `api/client.py`, and `tpujob/` by name, import it.
"""

from typing import TYPE_CHECKING

from orchestrator.system.lazy import modules_of

if TYPE_CHECKING:
    from orchestrator.api.functions import function as function
    from orchestrator.api.functions import outcome as outcome
    from orchestrator.api.functions import raised as raised
else:
    __getattr__ = modules_of(__name__)
