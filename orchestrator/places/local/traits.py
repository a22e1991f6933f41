"""This machine as data."""

from orchestrator.places.traits import Traits

TRAITS = Traits("local", ("local",), "process", billed=False, held=False, watched=False, made_with_job=False)
