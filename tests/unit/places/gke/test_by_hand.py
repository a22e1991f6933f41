"""What a person types when a job on a cluster is not proven gone."""

from orchestrator.core.lease.cloud_api import SliceName
from orchestrator.places.gke import by_hand


def test_the_commands_name_namespace_lease_and_context() -> None:
    name = SliceName("my ctx@https://127.0.0.1:1", "team", "tpujob-abc123-0123456789", queued=True)
    every = "jobsets,jobs,pods,configmaps,secrets -n team -l tpujob-lease-id=0123456789 --context 'my ctx'"
    assert by_hand.look_commands(name, "0123456789") == (f"kubectl get {every}",)
    assert by_hand.delete_command(name, "0123456789") == f"kubectl delete {every}", "also without its JobSet"
    assert by_hand.delete_command(name) == f"kubectl delete {every}", "also where only its leavings were found"


def test_a_cluster_without_a_context_is_that_of_your_own() -> None:
    name = SliceName("projects/p/locations/us-central1/clusters/one", "team", "tpujob-abc123-0123456789", queued=True)
    assert "--context" not in by_hand.delete_command(name)
