"""A cluster as data."""

from orchestrator.places.traits import Traits

TRAITS = Traits("gke", ("gke",), "JobSet", billed=True, held=False, watched=False, made_with_job=True)
