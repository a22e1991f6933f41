"""This machine as data."""

from orchestrator.traits import Traits

TRAITS = Traits(
    "local", ("local",), "process", awaited="process", alone=True, dollars="runs on this machine, without a price"
)
