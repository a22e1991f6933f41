"""Run jobs on Cloud TPUs from Python, with the same guarantee as the command line::

    import tpujob

    client = tpujob.Client()
    result = client.run(tpujob.Job.load("job.yaml"))

docs/python-api.md shows the rest. Importing this package loads nothing else: each name is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from orchestrator import __version__ as __version__

if TYPE_CHECKING:
    from orchestrator.api.client import Client as Client
    from orchestrator.api.client import LogLine as LogLine
    from orchestrator.api.client import Run as Run
    from orchestrator.api.functions.function import RemoteFunction as RemoteFunction
    from orchestrator.api.functions.function import function as function
    from orchestrator.api.guarantee.gc import GcResult as GcResult
    from orchestrator.api.job import Access as Access
    from orchestrator.api.job import Emulated as Emulated
    from orchestrator.api.job import Gke as Gke
    from orchestrator.api.job import Job as Job
    from orchestrator.api.job import Limits as Limits
    from orchestrator.api.job import Profile as Profile
    from orchestrator.api.job import Tpu as Tpu
    from orchestrator.api.job import TpuAlternative as TpuAlternative
    from orchestrator.api.job import Train as Train
    from orchestrator.api.jobs.planning import Export as Export
    from orchestrator.api.jobs.planning import PlanPreview as _Plan
    from orchestrator.api.lending import CommandResult as CommandResult
    from orchestrator.api.lending import Slice as Slice
    from orchestrator.api.session.events import Alert as Alert
    from orchestrator.api.session.events import Bar as Bar
    from orchestrator.api.session.events import Event as Event
    from orchestrator.api.session.events import Failure as Failure
    from orchestrator.api.session.events import LogLines as LogLines
    from orchestrator.api.session.events import Metrics as Metrics
    from orchestrator.api.session.events import Notice as Notice
    from orchestrator.api.session.events import Progress as Progress
    from orchestrator.api.session.events import Running as Running
    from orchestrator.api.session.events import RunResult as RunResult
    from orchestrator.api.session.events import SweepResult as SweepResult
    from orchestrator.api.session.events import VariantResult as VariantResult
    from orchestrator.api.session.events import WorkerEnded as WorkerEnded
    from orchestrator.api.session.events import Workers as Workers
    from orchestrator.api.session.sweep_progress import SweepProgress as SweepProgress
    from orchestrator.api.slices.down import DownResult as DownResult
    from orchestrator.api.slices.down import SliceRelease as SliceRelease
    from orchestrator.api.slices.offers import Offers as Offers
    from orchestrator.api.slices.status import SliceRow as SliceRow
    from orchestrator.api.slices.status import Status as Status
    from orchestrator.api.slices.up import SliceEnd as SliceEnd
    from orchestrator.api.slices.up import SliceStatus as SliceStatus
    from orchestrator.api.slices.up import UpResult as UpResult
    from orchestrator.api.sweeps.plans import SweepPreview as _SweepPlan
    from orchestrator.errors import *  # noqa: F403 - that module has nothing but errors
    from orchestrator.report.money.spending import CloudCost as CloudCost
    from orchestrator.report.money.spending import CostReport as CostReport
    from orchestrator.report.money.spending import CostRow as CostRow
    from orchestrator.report.money.spending import OpenSlice as OpenSlice
    from orchestrator.report.results import RunReport as RunReport
    from orchestrator.report.rows.collected import ResultRemark as ResultRemark
    from orchestrator.report.rows.whole_run import RunSummary as RunSummary
    from orchestrator.report.rows.worker_ends import WorkerReport as WorkerReport

    Plan = _Plan
    SweepPlan = _SweepPlan

_NAMES = {  # module of each name
    "client.client": ("Client", "LogLine", "Run"),
    "client.jobs.planning": ("Export", "Plan"),
    "client.events": (
        *("Alert", "Bar", "Event", "Failure", "LogLines", "Metrics", "Notice", "Progress", "RunResult", "Running"),
        *("SweepResult", "VariantResult", "WorkerEnded", "Workers"),
    ),
    "client.functions.function": ("RemoteFunction", "function"),
    "client.guarantee.gc": ("GcResult",),
    "client.job": ("Access", "Emulated", "Gke", "Job", "Limits", "Profile", "Tpu", "TpuAlternative", "Train"),
    "client.lending": ("CommandResult", "Slice"),
    "client.slices.down": ("DownResult", "SliceRelease"),
    "client.slices.offers": ("Offers",),
    "client.slices.status": ("SliceRow", "Status"),
    "client.slices.up": ("SliceEnd", "SliceStatus", "UpResult"),
    "client.sweeps.plans": ("SweepPlan",),
    "client.sweeps.progress": ("SweepProgress",),
    "errors": (
        *("AlreadyExists", "ArtifactError", "AuthError", "BadRequest", "Canceled", "CapacityError", "CloudError"),
        *("CloudUnavailable", "CommandFailed", "ConfigError", "DeadlineExceeded", "ExternalAddressRefused"),
        *("HostKeyMismatch", "Interrupted", "JobSpecError", "NeedsConsent", "NoRouteOut", "OsLoginRequired"),
        *("PayloadFailed", "Preempted", "QuotaError", "RemoteError", "RemoteFunctionError", "SliceLost"),
        *("TeardownUnproven", "TpujobError", "TunnelRefused", "UnexpectedReply", "UnknownLease", "UnknownRun"),
        *("Unreachable", "UserError", "Vanished", "WatchdogNotArmed", "WrongState"),
    ),
    "report.results": ("RunReport",),
    "report.whole_run": ("RunSummary",),
    "report.collected": ("ResultRemark",),
    "report.worker_ends": ("WorkerReport",),
    "report.money.spending": ("CloudCost", "CostReport", "CostRow", "OpenSlice"),
}
_HOMES = {name: f"orchestrator.{module}" for module, names in _NAMES.items() for name in names}
_OTHERWISE = {"Plan": "PlanPreview", "SweepPlan": "SweepPreview"}  # named otherwise there

__all__ = sorted(_HOMES)  # noqa: PLE0605 - a list of the table's names

if not TYPE_CHECKING:  # a type checker would take every name for one of this module

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(_HOMES[name]), _OTHERWISE.get(name, name))
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__", "__all__", "__doc__"])
