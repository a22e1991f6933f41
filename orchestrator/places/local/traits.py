"""This machine as data."""

from orchestrator.places.traits import Traits

TRAITS = Traits(
    name="local",
    clouds=("local",),
    noun="process",
    area="directory",
    awaited="process",
    reached="local",
    billed=False,
    by_target=False,
    held=False,
    watched=False,
    made_with_job=False,
    vms=False,
    tpus=False,
    alone=True,
    dollars="runs on this machine, without a price",
)
