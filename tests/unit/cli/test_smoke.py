"""`tpujob smoke` before it creates anything: what it takes, what that may cost, and whom it asks."""

import contextlib
import io
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator import catalog
from orchestrator.api.slices.offers import Offers
from orchestrator.cli.commands.guarantee.smoke import ask, choice, verdict
from orchestrator.drill.commands import Done
from orchestrator.drill.smoke import Smoke, Step, Wish
from orchestrator.errors import Interrupted, UserError
from orchestrator.report.offers import Offered

ASKED_FOR = '{"method": "POST", "path": "/v2/projects/P/locations/us-east5-a/nodes?nodeId=tpujob-abc123-k3zgazhmv1"}'


def offers(*rows: Offered) -> Offers:
    return Offers("2026-11", rows, None, by_zone=False, larger_left_out=False)


def row(name: str, zone: str, usd: float | None, **how: Any) -> Offered:
    return Offered(name, catalog.lookup(name), zone, usd, **how)


def test_the_cheapest_type_of_one_host_that_the_project_has_in_each_of_its_zones() -> None:
    wish = choice(
        offers(
            row("v5litepod-1", "a-1", 0.5, has=False),
            row("v5litepod-16", "a-1", 0.6),
            row("v6e-1", "a-1", None),
            row("v2-8", "a-1", 4.5),
            row("v5litepod-1", "b-1", 1.2, has=True),
            row("v5litepod-1", "c-1", 1.5),
        ),
        spot=False,
    )
    assert (wish.accelerator, wish.zones, wish.usd_per_hour) == ("v5litepod-1", ("b-1", "c-1"), 1.5)
    assert wish.most_usd == pytest.approx(0.5)


def test_what_is_granted_costs_nothing_and_spot_has_a_price_of_its_own() -> None:
    rows = offers(row("v4-8", "a-1", 12.9, granted=1), row("v5litepod-1", "a-1", 1.2, spot_usd_per_hour=0.5))
    assert (choice(rows, spot=False).accelerator, choice(rows, spot=False).most_usd) == ("v4-8", 0.0)
    assert (choice(rows, spot=True).accelerator, choice(rows, spot=True).usd_per_hour) == ("v5litepod-1", 0.5)


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ((), "no type of one host with a known price"),
        ((row("v5litepod-1", "a-1", None),), "no type of one host with a known price"),
        ((row("v4-8", "a-1", 12.9),), r"v4-8 may cost \$4.30, and this promises \$2.00 at most"),
    ],
)
def test_nothing_is_taken_whose_price_is_unknown_or_more_than_it_promises(rows: tuple[Offered, ...], why: str) -> None:
    with pytest.raises(UserError, match=why):
        choice(offers(*rows), spot=False)


@pytest.mark.parametrize(
    ("typed", "tty", "yes", "refused"),
    [
        ("", False, False, "there is no terminal"),
        ("n\n", True, False, "nothing was created"),
        ("\n", True, False, "nothing was created"),
        ("y\n", True, False, None),
        ("", False, True, None),
    ],
)
def test_it_begins_only_with_an_agreement(
    monkeypatch: pytest.MonkeyPatch, typed: str, tty: bool, yes: bool, refused: str | None
) -> None:
    stdin = io.StringIO(typed)
    stdin.isatty = lambda: tty  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stdin", stdin)
    with pytest.raises(UserError, match=refused) if refused else contextlib.nullcontext():
        ask("acme-prod: $0.40 at most", yes=yes)


def test_a_signal_while_the_last_step_looks_ends_nothing_and_one_before_is_obeyed_after_it(tmp_path: Path) -> None:
    played = smoke_test(tmp_path, signals=[signal.SIGTERM])
    played.play(())
    assert [(step.name, step.ok, step.what) for step in played.steps] == [("left", True, "nothing was asked for")]
    stopped = smoke_test(tmp_path, signals=[signal.SIGTERM])
    with pytest.raises(Interrupted) as error:
        stopped.play(("ssh",))
    assert error.value.exit_code == 143 and [step.name for step in stopped.steps] == ["left"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("x"), KeyError("run")])
def test_whatever_ends_a_step_the_last_one_is_played(tmp_path: Path, error: Exception) -> None:
    def fails(what: str) -> None:
        raise error

    played = smoke_test(tmp_path, on_progress=fails)
    played.play()
    assert [(step.name, step.ok) for step in played.steps] == [("job", False), ("left", True)]
    assert type(error).__name__ in played.steps[0].what


def test_a_slice_that_was_asked_for_is_not_taken_for_gone_because_a_command_failed(tmp_path: Path) -> None:
    (tmp_path / "transcript.jsonl").write_text(f'{ASKED_FOR}\n{{"method": "GET", "pa')
    played = smoke_test(tmp_path, on_progress=lambda what: (_ for _ in ()).throw(OSError(24, "Too many open files")))
    played.play(())
    assert not played.steps[-1].ok and not played.ok


def test_a_slice_that_is_still_there_ends_with_75_whatever_else_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "transcript.jsonl").write_text(f"{ASKED_FOR}\n")

    def all_there(self: Smoke, *zones: str) -> set[str]:
        assert zones == ("us-east5-a",)
        self._pause(0.0)  # a second signal ends nothing
        return {"tpujob-abc123-k3zgazhmv1"}

    monkeypatch.setattr(Smoke, "_all_there", all_there)
    played = smoke_test(tmp_path, signals=[signal.SIGINT])
    with pytest.raises(Interrupted) as stopped:
        played.play(("ssh",))
    assert "still there: tpujob-abc123-k3zgazhmv1" in played.steps[-1].what
    assert verdict(played, stopped.value) == verdict(played, None) == 75


def test_without_anything_left_a_signal_or_a_failed_step_decides(tmp_path: Path) -> None:
    played = smoke_test(tmp_path)
    played.play(())
    assert verdict(played, None) == 0
    with pytest.raises(Interrupted):
        verdict(played, Interrupted(signal.SIGINT))
    played.steps.insert(0, Step("job", False, 1.0, "it failed"))
    assert verdict(played, None) == 70


def test_a_step_for_which_too_little_time_is_left_is_not_begun(tmp_path: Path) -> None:
    played = smoke_test(tmp_path, steps_s=400.0)
    played.play(("watchdog",))
    assert played.steps[0].what.startswith("not played") and not played.steps[0].ok


def test_what_a_command_said_last_is_no_advice_nor_where_its_results_are() -> None:
    assert (
        Done(77, "", "auth     no permission\nhint: ask your admin\n   do now   gcloud …\n").last
        == "auth     no permission"
    )
    ended = "lost     worker0: artifacts/a.txt · damaged\nrun      g4j6yhq3sy · 17.9 s · runs/report.html\n"
    assert Done(65, "", ended).last == "lost     worker0: artifacts/a.txt · damaged"
    assert Done(1, "", "").last == "nothing"


def smoke_test(directory: Path, **given: Any) -> Smoke:
    ignored: Any = lambda *what: None  # noqa: E731
    callbacks = dict.fromkeys(("end_claim", "on_step", "on_progress", "on_stop"), ignored)
    return Smoke(Wish("v5litepod-1", ("us-central1-a",), 1.2), directory, directory / "other", **callbacks | given)
