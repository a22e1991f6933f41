"""What JSON carries, by the client's rules for arguments and by the payload's for results."""

import enum
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.client.functions import values
from orchestrator.errors import UserError
from payload.functions import outcome

BOTH = pytest.mark.parametrize(
    ("as_json", "refusal"),
    [(values.as_json, UserError), (outcome.as_json, (TypeError, ValueError))],
    ids=["arguments", "results"],
)
AsJson = Callable[[Any, str], Any]


class Scalar:
    """As one of numpy, torch or JAX."""

    ndim = 0

    def item(self) -> float:
        return 0.5


class Color(enum.IntEnum):
    RED = 1


@BOTH
def test_plain_values_are_carried_and_tuples_become_lists(as_json: AsJson, refusal: Any) -> None:
    given = {"a": (1, 2.5, None), "b": [True, "ü\ud800"], "c": {"d": ()}, "e": Color.RED, "f": Scalar()}
    found = as_json(given, "it")
    assert found == {"a": [1, 2.5, None], "b": [True, "ü\ud800"], "c": {"d": []}, "e": 1, "f": 0.5}
    assert type(found["e"]) is int and found["b"][0] is True


@BOTH
@pytest.mark.parametrize(("value", "words"), [
    (math.nan, "it is nan, which JSON cannot carry"), ({"a": [1, math.inf]}, r"it\['a'\]\[1\] is inf"),
    ({1: 2}, "it has the key 1; the keys of a JSON object are text"), ({1, 2}, "set"), (b"x", "bytes"),
    (Path("x"), "Path"), ([object()], r"it\[0\] is .*object"),
])  # fmt: skip
def test_what_json_does_not_carry_is_refused_with_its_place(
    as_json: AsJson, refusal: Any, value: Any, words: str
) -> None:
    with pytest.raises(refusal, match=words):
        as_json(value, "it")


@BOTH
def test_a_value_that_holds_itself_is_refused(as_json: AsJson, refusal: Any) -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(refusal, match="more than 100 levels deep"):
        as_json(endless, "it")


def test_arguments_and_results_have_a_size() -> None:
    with pytest.raises(UserError, match=r"the arguments have 2\.0 MB as JSON, and 1 MB is the most"):
        values.json_text("x" * 2_000_000)
    with pytest.raises(ValueError, match=r"the result has 11\.0 MB as JSON, and 10 MB is the most; write it to a file"):
        outcome.content("x" * 11_000_000)
