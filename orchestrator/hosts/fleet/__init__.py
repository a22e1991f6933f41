"""The workers of a job as one crew: `fleet.Fleet` over SSH, its steps as effects, and the contract of any crew (`crew`)."""

from typing import TYPE_CHECKING

from orchestrator.system.lazy import modules_of

if TYPE_CHECKING:
    from orchestrator.hosts.fleet import connecting as connecting
    from orchestrator.hosts.fleet import fleet as fleet
else:
    __getattr__ = modules_of(__name__)
