"""What every call shares: the session with its cloud, ledger and locks; what it reports, and how it finds what a name means."""

from typing import TYPE_CHECKING

from orchestrator.system.lazy import modules_of

if TYPE_CHECKING:
    from orchestrator.api.session import events as events
    from orchestrator.api.session import lookup as lookup
    from orchestrator.api.session import reporter as reporter
    from orchestrator.api.session import session as session
else:
    __getattr__ = modules_of(__name__)
