from typing import Any

import pytest

from orchestrator.client.functions.grid import calls_of
from orchestrator.errors import UserError


def test_a_mapping_of_lists_is_every_combination_the_last_name_changing_fastest() -> None:
    found = calls_of({"lr": (1, 2), "width": range(2)})
    assert found == [((), {"lr": lr, "width": width}) for lr in (1, 2) for width in (0, 1)]


def test_a_list_has_one_call_in_each_item() -> None:
    assert calls_of([{"lr": 1}, (2, 3), {}]) == [((), {"lr": 1}), ((2, 3), {}), ((), {})]
    assert calls_of((i,) for i in range(2)) == [((0,), {}), ((1,), {})]


@pytest.mark.parametrize(("grid", "words"), [
    ([], "the grid is empty"), ({}, "the grid is empty"), ({"lr": []}, "the grid is empty"),
    ({"lr": 1}, r"grid\['lr'\] is not a list of values"),
    ({"lr": "abc"}, r"grid\['lr'\] is not a list of values"),
    ([{"lr": 1}, 2], r"grid\[1\] is neither a dict of arguments nor a tuple"), ([[1]], r"grid\[0\] is neither"),
])  # fmt: skip
def test_anything_else_is_refused_with_an_example(grid: Any, words: str) -> None:
    with pytest.raises(UserError, match=words) as raised:
        calls_of(grid)
    assert "write {'lr': [1e-4, 3e-4]}" in (raised.value.hint or "")
