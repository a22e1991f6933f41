"""Cloud TPU: a client on google-cloud-tpu for everything, a light one on the standard library for teardown, one base.

Enter through `connect`, which keeps credentials apart. It stands on `places.google`.
"""

from typing import TYPE_CHECKING

from orchestrator.system.lazy import modules_of

if TYPE_CHECKING:
    from orchestrator.places.tpu.api import transport as transport
else:
    __getattr__ = modules_of(__name__)
