"""What a run leaves on this machine is for its user only, by whichever way it came here and whatever the umask."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli_fixture import Tpujob
from tests.e2e.test_detached import submit

LEAVES = """\
metrics: {loss: 'loss (\\d+)'}
command: |
  mkdir -p "$TPUJOB_ARTIFACTS/deep/er"; echo 1 >"$TPUJOB_ARTIFACTS/deep/er/file"; chmod -R a+rwx "$TPUJOB_ARTIFACTS"
  echo '{"step": 1, "x": 2}' >>"$TPUJOB_ARTIFACTS/metrics.jsonl"; echo loss 3
"""
ON_A_SLICE = f"tpu: {{zone: us-central1-a}}\n{LEAVES}"
TOO_LARGE = '  head -c 3000000 /dev/zero >"$TPUJOB_ARTIFACTS/large"\n'


@pytest.fixture(params=[0o000, pytest.param(0o022, marks=pytest.mark.exhaustive)], ids="umask {:03o}".format)
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def others_may(directory: Path) -> list[str]:
    found = [directory, *directory.rglob("*")]
    assert len(found) > 5, "the run left nothing"
    return [f"{path} {path.stat().st_mode:o}" for path in found if stat.S_IMODE(path.stat().st_mode) & 0o077]


@pytest.mark.ci
@pytest.mark.usefixtures("umask")
def test_no_other_user_may_read_or_write_what_a_run_leaves(tpujob: Tpujob, monkeypatch: pytest.MonkeyPatch) -> None:
    attached = tpujob("run", tpujob.job(f"name: attached\n{ON_A_SLICE}"))
    assert attached.returncode == 0, attached.text
    local = tpujob("run", tpujob.job(f"name: local\non: local\n{LEAVES}"))
    assert local.returncode == 0, local.text
    sweep = tpujob("run", tpujob.job(f"name: sweep\nmatrix: {{seed: [1]}}\n{ON_A_SLICE}  : ${{params.seed}}\n"))
    assert sweep.returncode == 0, sweep.text
    assert (
        tpujob("run", tpujob.job(f"name: full\nlimits: {{max_results: 1MB}}\n{ON_A_SLICE}{TOO_LARGE}")).returncode == 65
    )
    collected = tpujob("collect", "full", "--max-results", "none")
    assert collected.returncode == 0, collected.text
    monkeypatch.setenv("TPUJOB_COLLECTOR", "off")
    attached_later = tpujob("attach", submit(tpujob, f"name: detached\n{ON_A_SLICE}"))
    assert attached_later.returncode == 0, attached_later.text
    runs = tpujob.directory / "runs"
    assert {path.name.partition("-")[0] for path in runs.iterdir()} == {
        "attached",
        "local",
        "sweep",
        "full",
        "detached",
    }
    assert [*runs.glob("full-*/worker0/artifacts/large")] and [*runs.glob("*/worker0/artifacts/deep/er/file")]
    assert others_may(runs) == []
