"""Cloud TPU as data."""

from orchestrator.traits import Traits

TRAITS = Traits("tpu", ("emulated", "google"), "slice", "zone", "VM", "ssh", billed=True, tpus=True, by_target=True,
    one_list=True, held=True, watched=True, vms=True)  # fmt: skip
