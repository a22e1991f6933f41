"""Cloud TPU as data."""

from orchestrator.places.traits import Traits

TRAITS = Traits("tpu", ("emulated", "google"), "slice", billed=True, held=True, watched=True, made_with_job=False)
