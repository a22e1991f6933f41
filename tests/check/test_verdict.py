"""What follows from the compiler's answers. "Fits" is said only of what was seen and judged."""

from typing import Any

import pytest

from orchestrator.check.play import Seen
from orchestrator.check.verdict import FAILED, FITS, GIB, NOT_JUDGED, TOO_LARGE, Graph, Verdict, is_out_of_memory, judge

HBM = 16 * GIB


def argument(name: str, *shape: int, kind: str = "f32") -> dict[str, Any]:
    size = 4
    for side in shape:
        size *= side
    return {"name": name, "type": kind, "shape": list(shape), "bytes": size}


def graph(order: int = 0, *, step: int = 1, name: str = "jit_step", total: float = 1.0, **more: Any) -> Graph:
    sizes = {
        "argument_bytes": int(total * GIB),
        "output_bytes": 0,
        "aliased_bytes": 0,
        "temporary_bytes": 0,
        "code_bytes": 0,
    }
    judged = {"outcome": "compiled", "name": name, "parameters": [], "partitions": 1, "largest": [], **sizes, **more}
    return Graph(judged, step, order)


def seen(*transfers: int, ended: str = "steps", imports: tuple[str, ...] = ("jax",), code: int | None = None) -> Seen:
    steps = {"1": [{"step": number, "graphs": 1, "transfers": count} for number, count in enumerate(transfers, 1)]}
    return Seen(ended, 1.0, code, frozenset(imports), steps)


THREE_STEPS = seen(0, 0, 0)


def judged(*graphs: Graph, seen: Seen = THREE_STEPS, hbm: int | None = HBM, log: str = "", limit: str = "") -> Verdict:
    return judge(graphs, seen, 3, hbm, log=log, limit=limit)


def test_what_is_compiled_within_the_hbm_of_a_chip_fits() -> None:
    found = judged(graph(total=15.9))
    assert (found.verdict, found.exit_code, found.why) == (FITS, 0, ())


def test_what_is_donated_counts_once() -> None:
    weights = 9 * GIB
    assert judged(graph(total=9, output_bytes=weights, aliased_bytes=weights)).verdict == FITS
    assert judged(graph(total=9, output_bytes=weights)).verdict == TOO_LARGE


def test_one_program_that_is_too_large_decides_whatever_else_was_seen() -> None:
    large = graph(1, outcome="too large", needed_bytes=20 * GIB, largest=[argument("scores", 65536, 16, 1024)])
    for how in (seen(0, ended="failed", code=1), seen(0, ended="memory"), seen(0, ended="enough")):
        found = judged(graph(), large, graph(2, outcome="refused", why="no"), seen=how)
        assert (found.verdict, found.exit_code) == (TOO_LARGE, 72)
        assert "4.00 GiB too much" in found.why[0]
        assert "scores f32[65536,16,1024]" in found.why[1]


@pytest.mark.parametrize(
    ("graphs", "how", "says"),
    [
        ((), seen(), "XLA compiled nothing"),
        ((), seen(imports=()), "does not use XLA"),
        ((graph(),), seen(0, imports=("torch_tpu",)), "torch_tpu"),
        ((graph(), graph(1, outcome="refused", why="no lapack", custom_calls=["lapack_geev"])), seen(0), "lapack_geev"),
        ((graph(),), seen(0, 0, ended="time"), "2 steps of 3"),
        ((graph(),), seen(ended="memory"), "no step"),
        ((graph(),), seen(ended="failed", code=1), "Pallas"),
    ],
)
def test_what_could_not_be_judged_is_never_shown_as_fits(graphs: tuple[Graph, ...], how: Seen, says: str) -> None:
    found = judged(
        *graphs, seen=how, log="ValueError: Only interpret mode is supported on CPU backend.", limit="the limit"
    )
    assert (found.verdict, found.exit_code) == (NOT_JUDGED, 73)
    assert says in " ".join(found.why)


def test_without_the_size_of_the_hbm_nothing_fits() -> None:
    assert judged(graph(), hbm=None).verdict == NOT_JUDGED


def test_a_program_that_fails_here_is_neither() -> None:
    found = judged(graph(), seen=seen(0, ended="failed", code=3), log="ModuleNotFoundError")
    assert found.verdict == FAILED
    assert "exit code 3" in found.why[0]


def test_an_argument_that_grows_is_named_with_its_first_two_shapes() -> None:
    grown = [graph(step, step=step, parameters=[argument("x", 7 + step, 256)]) for step in range(1, 6)]
    found = judged(*grown, seen=seen(0, 0, 0, 0, 0))
    assert found.verdict == FITS
    assert [each["step"] for each in found.recompiled] == [3, 4, 5]
    assert "in each step" in found.notes[0]
    assert "x of jit_step was f32[9,256] and is f32[10,256] in step 3" in found.notes[1]


def test_programs_of_the_first_steps_are_no_finding() -> None:
    found = judged(*[graph(step, step=step, parameters=[argument("x", step)]) for step in range(3)])
    assert not found.recompiled
    assert not found.notes


def test_another_program_with_the_same_arguments_is_said_to_be_one() -> None:
    same = [graph(order, step=step, parameters=[argument("x", 8)]) for order, step in enumerate((1, 2, 4))]
    assert "keep their shapes" in judged(*same, seen=seen(0, 0, 0, 0, 0)).notes[1]


def test_reading_from_the_device_in_each_step_is_said_and_now_and_then_is_not() -> None:
    assert any("reads from the device in each step" in note for note in judged(graph(), seen=seen(0, 1, 2, 3)).notes)
    assert not judged(graph(), seen=seen(0, 1, 1, 2)).notes


@pytest.mark.parametrize(
    ("code", "log", "is_memory"),
    [
        (1, "RuntimeError: Error preparing computation: Out of memory allocating 27254724688 bytes.", True),
        (1, "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory", True),
        (137, "", True),
        (1, "ValueError: no such file", False),
    ],
)
def test_memory_that_this_machine_does_not_have_is_no_failure_of_the_program(
    code: int, log: str, is_memory: bool
) -> None:
    assert is_out_of_memory(seen(0, ended="failed", code=code), log) is is_memory
    assert not is_out_of_memory(seen(0), log)


def test_a_failure_is_told_with_the_last_line_of_the_program() -> None:
    found = judged(graph(), seen=seen(0, ended="failed", code=3), log="step 1\nKeyError: 'lr'\n\n")
    assert found.verdict == FAILED and found.why == ("the program failed here, with exit code 3: KeyError: 'lr'",)


def test_a_program_without_a_step_that_is_known_as_such_says_so() -> None:
    assert judged(graph(), seen=seen(ended="itself")).notes == (
        "no step of a training was recognized; what ran until its end is judged",
    )
    assert judged(graph()).notes == ()
