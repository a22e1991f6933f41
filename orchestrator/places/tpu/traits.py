"""Cloud TPU as data."""

from orchestrator.places.traits import Traits

TRAITS = Traits("tpu", "slice", billed=True, held=True, watched=True, made_with_job=False)
