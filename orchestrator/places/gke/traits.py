"""A cluster as data."""

from orchestrator.places.traits import Traits

TRAITS = Traits(
    name="gke",
    clouds=("gke",),
    noun="JobSet",
    area="namespace",
    awaited="pods",
    reached="pods",
    billed=True,
    by_target=False,
    held=False,
    watched=False,
    made_with_job=True,
    vms=False,
    tpus=True,
    one_list=False,
    results_stay=True,
    dollars="the pods of jobs by the prices of slices; what is billed is the nodes of the cluster",
    unpriced="no price is known for it where the cluster is; what is billed is its nodes",
)
