"""Nodes in words: by pool, some of them by name, and those that other jobs use."""

from orchestrator.places.gke.objects.nodes import NodeView, in_words


def test_nodes_are_named_by_their_pool() -> None:
    found = [NodeView("a", "v5e"), NodeView("b", "v5e", busy=True), NodeView("c")]
    assert in_words(found) == "2 nodes of pool v5e (a, b), 1 in use by others; 1 node (c)"


def test_of_many_nodes_three_are_named() -> None:
    assert in_words([NodeView(f"n{i}", "p") for i in range(16)]) == "16 nodes of pool p (n0, n1, n2, …)"
