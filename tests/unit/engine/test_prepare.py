"""What a slice is asked for with: names, labels, the switch, and nothing secret."""

from __future__ import annotations

import json
from pathlib import Path

from orchestrator.core.lease import Purpose
from orchestrator.core.pace import GOOGLE
from orchestrator.core.plan import Wish, make
from orchestrator.engine import boot_script
from orchestrator.engine.prepare import Place, drafts


def place(directory: Path) -> Place:
    def of(lease_id: str) -> Path:
        found = directory / lease_id
        found.mkdir(exist_ok=True)
        return found

    return Place("google", "my-project", "0wner0", of, GOOGLE)


def test_every_slice_is_asked_for_with_its_switch_inside_pinned_by_its_hash(tmp_path: Path) -> None:
    plan = make([Wish("v5litepod-8", ("us-central1",))])
    for lease, request in drafts(plan, place(tmp_path), handle="mnist", purpose=Purpose.RUN):
        script = request.metadata["startup-script"]
        assert boot_script.switch_source() in script
        assert boot_script.switch_sha256() in script
        assert lease.name.node in script and lease.id in script


def test_the_switch_is_told_what_the_labels_say_and_how_long_artifacts_wait(tmp_path: Path) -> None:
    plan = make([Wish("v5litepod-8", ("us-central1-a",))])
    ((lease, request),) = drafts(
        plan, place(tmp_path), handle="mnist", purpose=Purpose.HOLD, linger_s=90.0, idle_s=1800.0
    )
    script = request.metadata["startup-script"]
    start = script.index('{\n "v": 1')
    told = json.JSONDecoder().raw_decode(script[start:])[0]
    assert (told["mode"], told["linger_s"], told["idle_s"], told["run"]) == ("hold", 90.0, 1800.0, lease.id)
    assert str(told["deadline"]) == request.labels["tpujob-deadline"]
    assert str(told["lease"]) == request.labels["tpujob-lease"]


def test_two_slices_never_have_one_name(tmp_path: Path) -> None:
    plan = make([Wish("v5litepod-8", ("us-central1-a", "us-west4-a"))])
    names = [
        lease.name.node
        for _ in range(20)
        for lease, _ in drafts(plan, place(tmp_path), handle="mnist", purpose=Purpose.RUN)
    ]
    assert len(set(names)) == len(names) == 40


def test_no_private_key_is_in_the_request(tmp_path: Path) -> None:
    plan = make([Wish("v5litepod-8", ("us-central1-a",))])
    ((lease, request),) = drafts(plan, place(tmp_path), handle="mnist", purpose=Purpose.RUN)
    private = (tmp_path / lease.id / "id_ed25519").read_text()
    assert "PRIVATE KEY" in private
    assert not any(line in json.dumps(dict(request.metadata)) for line in private.splitlines() if len(line) > 40)
