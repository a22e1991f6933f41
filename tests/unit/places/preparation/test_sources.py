"""What a job ships beside its code: the payload, and of that no more than the job may need."""

from pathlib import Path

import pytest

from orchestrator.core.jobfile import keys
from orchestrator.places.preparation.sources import survey


@pytest.mark.parametrize(("train", "emulated", "shipped"), [
    ("{}", False, False), ("{}", True, True), ("{fallback: sample}", False, True),
    ("{fallback: synthetic}", False, True),
    ("{dataset: fashion-mnist, fallback: synthetic}", True, False),
    ("{entry: 'my:main'}", True, False),
])  # fmt: skip
def test_the_sample_of_mnist_is_shipped_where_the_training_may_fall_back_on_it(
    tmp_path: Path, train: str, emulated: bool, shipped: bool
) -> None:
    found = survey(keys.load(f"train: {train}\n", path="job.yaml"), tmp_path / "job.yaml", emulated=emulated)
    assert found is not None
    names = set(found.entries)
    assert "payload/data/sources.py" in names and "train.json" in names
    samples = {name for name in names if "/mnist_sample/" in name}
    assert len(samples) == (5 if shipped else 0), "four files and their license"


def test_on_a_cluster_the_sample_is_shipped_only_where_it_was_asked_for(tmp_path: Path) -> None:
    def shipped(train: str) -> bool:
        found = survey(keys.load(f"on: gke\ntrain: {train}\n", path="job.yaml"), tmp_path / "job.yaml")
        return found is not None and any("/mnist_sample/" in name for name in found.entries)

    assert shipped("{fallback: sample}")
    assert not shipped("{fallback: synthetic}") and not shipped("{}")
