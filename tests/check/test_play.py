"""What ends a program that is played, and that nothing of it is left; no compiler is asked."""

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from orchestrator.check.play import Dump, Limits, Play, Seen
from orchestrator.hosts.fleet.crew import StartRequest
from orchestrator.hosts.fleet.local import LocalCrew

MIB = 1 << 20
AFTERWARDS = "\nimport time\ntime.sleep(600)\n"
STEP = '{"step": 1, "graphs": 1, "transfers": 0}\n'


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[LocalCrew]:
    started = LocalCrew(tmp_path / "runs", "a1")
    yield started
    started.stop(0.0)
    started.close()


def played(
    crew: LocalCrew, program: str, directory: Path, *, seconds: float = 600.0, memory: int = 1 << 40, enough: int = 99
) -> tuple[Seen, list[Dump]]:
    """Play a program of Python; it is enough after so many dumps."""
    dumps: list[Dump] = []
    (directory / "program.py").write_text(program)
    script = f"exec {sys.executable} {directory / 'program.py'}"
    crew.follow(lambda worker, piece: None)
    play = Play(crew, directory, Limits(seconds, memory))
    seen = play.run([StartRequest("a1", "main", script, ({},))], dumps.append, lambda: len(dumps) >= enough)
    assert not [each for each in _processes() if str(directory / "program.py") in each]
    return seen, dumps


def _processes() -> Iterator[list[str]]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            yield process.cmdline()


def test_too_long_for_this_machine_is_said_as_such(crew: LocalCrew, tmp_path: Path) -> None:
    assert played(crew, AFTERWARDS, tmp_path, seconds=0.2)[0].ended == "time"


def test_too_large_for_this_machine_is_said_as_such(crew: LocalCrew, tmp_path: Path) -> None:
    assert played(crew, f"data = b'1' * {300 * MIB}{AFTERWARDS}", tmp_path, memory=200 * MIB)[0].ended == "memory"


def test_a_program_may_end_by_itself(crew: LocalCrew, tmp_path: Path) -> None:
    assert played(crew, "", tmp_path)[0].ended == "itself"


def test_a_failure_has_its_exit_code(crew: LocalCrew, tmp_path: Path) -> None:
    seen, _ = played(crew, "raise SystemExit(3)", tmp_path)
    assert (seen.ended, seen.exit_code) == ("failed", 3)


def writing(directory: Path, *names: str, then: str = "") -> str:
    made = directory / "dumps" / "7"
    lines = [f"import pathlib\nd = pathlib.Path({str(made)!r})\nd.mkdir(parents=True)"]
    lines += [f"(d / 'module_000{number}.{name}').write_bytes(b'hlo')" for number, name in enumerate(names)]
    return "\n".join([*lines, then])


def test_the_dumps_come_in_their_order_while_the_program_goes_on_and_the_last_one_it_needs_ends_it(
    crew: LocalCrew, tmp_path: Path
) -> None:
    names = ("a.before_optimizations.hlo.pb", "a.cpu_after_optimizations.hlo.pb", "b.before_optimizations.hlo.pb")
    seen, dumps = played(crew, writing(tmp_path, *names, then=AFTERWARDS), tmp_path, enough=2)
    assert [dump.file.name.split(".")[1] for dump in dumps] == ["a", "b"]
    assert seen.ended == "enough"


def test_a_dump_right_before_the_end_is_not_missed_and_has_its_step(crew: LocalCrew, tmp_path: Path) -> None:
    steps = f"(d.parent.parent / 'steps-7.jsonl').write_text({STEP!r})"
    seen, dumps = played(crew, writing(tmp_path, "a.before_optimizations.hlo.pb", then=steps), tmp_path)
    assert [seen.first_step(dump) for dump in dumps] == [1]
    assert json.loads(STEP) in seen.steps["7"]


def test_after_the_last_step_the_program_is_ended(crew: LocalCrew, tmp_path: Path) -> None:
    done = (
        f"pathlib.Path({str(tmp_path / 'steps-7.jsonl')!r}).write_text({STEP + json.dumps({'done': True})!r} + chr(10))"
    )
    assert played(crew, f"import pathlib\n{done}{AFTERWARDS}", tmp_path)[0].ended == "steps"


def test_what_was_cut_off_hides_nothing_that_came_after_it(crew: LocalCrew, tmp_path: Path) -> None:
    """An empty dump cannot be read, and is not judged; that must not keep the next one from being judged."""
    empty = "(d / 'module_0000.a.before_optimizations.hlo.pb').write_bytes(b'')"
    _, dumps = played(crew, writing(tmp_path, "-", "b.before_optimizations.hlo.pb", then=empty), tmp_path)
    assert [dump.file.name.split(".")[1] for dump in dumps] == ["a", "b"]


def test_a_setup_that_does_not_succeed_is_the_end(crew: LocalCrew, tmp_path: Path) -> None:
    crew.follow(lambda worker, piece: None)
    phases = [StartRequest("a1", name, script, ({},)) for name, script in (("setup", "exit 4"), ("main", "touch main"))]
    seen = Play(crew, tmp_path, Limits(600.0, 1 << 40)).run(phases, lambda dump: None, lambda: False)
    assert (seen.ended, seen.exit_code) == ("failed", 4)
    assert not list(tmp_path.glob("runs/**/main"))
