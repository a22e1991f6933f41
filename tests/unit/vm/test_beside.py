"""What a job wrote beside its artifacts, told by the packer: a supervised job of real processes in a home of its own."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.vm.conftest import PREFIX, Worker

ABOVE = {"above/data/a", "above/b", "home/tpujob/runs/c", "home/tpujob/x/d"}
KEY = "-----BEGIN OPENSSH PRIVATE KEY-----"


@pytest.fixture
def rows(worker: Worker) -> Callable[..., dict[str, dict[str, Any]]]:
    """Run a job over what lies in its directory and its home already, and return the rows of what lies beside by path."""
    work = worker.path("work")
    work.mkdir(parents=True)
    worker.path("artifacts").mkdir()
    worker.env["TPUJOB_EMULATED_TRAINING"] = ""  # what other programs of this machine write to /tmp is not looked at

    def answer(script: str, *patterns: str, **more: Any) -> dict[str, dict[str, Any]]:
        if not worker.path("main").exists():
            worker.start(script)
            worker.ended()
        request = json.dumps({"attempt": "a1", "patterns": patterns, "beside": {"most_bytes": None, **more}})
        lines = worker.output("pack", stdin=f"{request}\n[]\n".encode()).splitlines()
        found = [json.loads(line[len(PREFIX) :]) for line in lines]
        return {row["path"]: row for row in found if row.get("beside")}

    return answer


@pytest.mark.parametrize(("script", "found"), [
    ("mkdir -p checkpoints/a && echo new >checkpoints/a/best.pt", {"work/checkpoints/a/best.pt"}),
    ("echo new >../../../../model.keras", {"home/model.keras"}),
    ("mkdir ../data ../../../x; tee ../data/a ../b ../../c ../../../x/d <train.py", ABOVE),
    ("echo more >>train.py", {"work/train.py"}),
    ("sleep 0.01; printf 'same size' >train.py", {"work/train.py"}),
    ("chmod 600 train.py; touch -r train.py train.py", set()),
    ("cp train.py other && mv other train.py", {"work/train.py"}),
    ("mv train.py renamed.py", {"work/renamed.py"}),
    ("rm -rf ../work ../artifacts; echo new >~/kept", {"home/kept"}),
    ("mkdir .hydra && echo a >.hydra/config.yaml; exit 3", {"work/.hydra/config.yaml"}),
    ("mkdir wandb && echo a >wandb/run && ln -s wandb latest && ln -s wandb/run last", {"work/wandb/run"}),
    ("echo a >../artifacts/a; ln ../artifacts/a b; echo c >c; ln -s ../work/c ../artifacts/c", set()),
    ("echo a >one.png; echo b >two.csv", {"work/two.csv"}),  # the pattern of the test brings the other
    ("mkdir ~/.cache; echo a >~/.cache/blob; ln -s ~/.cache/blob model; ln -s ~/.cache all", {"work/model"}),
    ("echo '{\"type\": \"authorized_user\"}' >~/.config; ln -s ~/.config settings.json", {"work/settings.json"}),
    ("mkfifo pipe; ln -s gone nothing; ln -s /etc/hostname host; ln -s /etc etc", {"work/host", "work/etc"}),
    ("mkdir -p .git .cache v/lib; echo a | tee .git/a .cache/a v/lib/a v/pyvenv.cfg", set()),
    ("mkdir -p ~/.cache ~/.ssh ~/tpujob/envs; echo a | tee ~/.cache/a ~/.ssh/a ~/tpujob/envs/a ~/.netrc a.pyc", set()),
])  # fmt: skip
def test_what_is_new_in_the_directory_and_the_home_of_a_job_is_told_and_nothing_else(
    worker: Worker, rows: Callable[..., dict[str, dict[str, Any]]], script: str, found: set[str]
) -> None:
    worker.path("work", "train.py").write_text("same siza")
    (worker.home / "of-an-earlier-run").write_text("a")
    assert rows(script, "*.png").keys() == found


def test_secrets_stay_and_are_named_and_so_is_what_cannot_be_read_or_is_too_much(
    rows: Callable[..., dict[str, dict[str, Any]]],
) -> None:
    script = f"echo a >.env; echo '{KEY}' >notes.txt; printf 12345678 >large; printf 12 >small; printf 123 >middle"
    found = rows(script, most_bytes=5)
    assert {name.removeprefix("work/"): row.get("why", row.get("size_bytes")) for name, row in found.items()} == {
        ".env": "not collected: it looks like an environment file",
        "notes.txt": "not collected: it looks like a private key",
        "small": 2,
        "middle": 3,
        "large": 8,
    }
    assert [name for name, row in found.items() if "sha256" in row] == ["work/small", "work/middle"], "by their sizes"
    assert rows("", only="l*").keys() == rows("", only="work/large").keys() == {"work/large"}


def test_what_an_earlier_attempt_left_is_the_jobs_and_without_a_record_nothing_is_told(
    worker: Worker, rows: Callable[..., dict[str, dict[str, Any]]]
) -> None:
    for name in ("restored.pt", "shipped.py"):
        worker.path("work", name).write_text(name)
    worker.path("restored.json").write_text('["restored.pt"]')
    assert rows("true").keys() == {"work/restored.pt"}
    worker.path("before.json").unlink()
    assert rows("true").keys() == {"(its home)", "work/restored.pt", "work/shipped.py"}, "rather too much than nothing"
    worker.path("main", "started.json").unlink()
    assert rows("true") == {}, "the job has not begun"


def test_what_is_new_in_tmp_is_named_with_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from orchestrator.vm import beside

    run, place = tmp_path / "run", tmp_path / "tmp"
    (run / "work").mkdir(parents=True)
    for name in ("old", "ckpt", "grown"):
        (place / name).mkdir(parents=True)
        (place / name / "a").write_text("a")
    monkeypatch.setattr(beside, "PLACES", (str(place),))
    beside.remember(str(run), str(tmp_path / "home"))
    (place / "grown" / "b").write_text("bb")
    (place / "model.pt").write_text("weights")
    (place / "tmpx8_abc12").write_text("of a library")
    os.utime(place / "old")
    record = beside.recorded(str(run))
    assert record is not None
    (tmp_path / "home" / ".ssh").mkdir(parents=True)
    for name in (".ssh/a", ".mymodel"):
        (tmp_path / "home" / name).write_text("12345")
    found = set(beside.elsewhere(record, lambda count: None))
    assert found == {(f"{place}/grown", 2, 3), (f"{place}/model.pt", 1, 7), (f"{tmp_path}/home/.mymodel", 1, 5)}
    monkeypatch.setattr(beside, "LOOKED_AT", 0)
    beside.remember(str(run), str(tmp_path / "home"))
    (place / "new").write_text("n")
    assert [row[0] for row in beside.elsewhere(beside.recorded(str(run)) or {}, lambda count: None)] == [f"{place}/new"]
