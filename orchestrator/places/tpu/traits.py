"""Cloud TPU as data."""

from orchestrator.places.traits import Traits

TRAITS = Traits("tpu", ("google", "emulated"), "slice", billed=True, held=True, watched=True, made_with_job=False)
