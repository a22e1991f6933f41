"""A cluster as data."""

from orchestrator.traits import Traits

TRAITS = Traits("gke", ("gke",), "JobSet", "namespace", "pods", "pods", billed=True, made_with_job=True, tpus=True,
    results_stay=True, dollars="the pods of jobs by the prices of slices; what is billed is the nodes of the cluster",
    unpriced="no price is known for it where the cluster is; what is billed is its nodes")  # fmt: skip
