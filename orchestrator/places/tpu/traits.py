"""Cloud TPU as data."""

from orchestrator.places.traits import Traits

TRAITS = Traits(
    name="tpu",
    clouds=("google", "emulated"),
    noun="slice",
    area="zone",
    awaited="VM",
    reached="ssh",
    billed=True,
    by_target=True,
    held=True,
    watched=True,
    made_with_job=False,
    vms=True,
    tpus=True,
)
