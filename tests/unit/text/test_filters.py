"""Conditions on the rows of a table."""

import pytest

from orchestrator.text.filters import matches, parse

ROW = {"name": "mnist-lr", "state": "running", "cost": 2.5, "zone": None, "step": 12, "type": ("v5litepod-8", "v5e-8")}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("state=running", True),
        ("state=RUN*", True),
        ("state != running", False),
        ("state!=failed", True),
        ("cost>2", True),
        ("cost>=2.5", True),
        ("cost<2.5", False),
        ("cost <= 3", True),
        ("step=12.0", True),
        ("step!=12", False),
        ("zone=", True),
        ("zone>1", False),
        ("name=lr", False),
        ("name=*lr*", True),
        ("mnist", True),
        ("MNIST", True),
        ("nothing", False),
        ("12", True),
        ("name>1", False),
        ("state==running", True),
        ("state='running'", True),
        ('state = "run*"', True),
        ("type=v5e-8", True),
        ("type=v5litepod-8", True),
        ("type=v6e-8", False),
        ("type!=v5e-8", False),
        ("type!=v6e-8", True),
        ("v5e", True),
    ],
)
def test_a_condition_holds_or_not(text: str, holds: bool) -> None:
    assert parse(text, ROW.keys()).holds(ROW) is holds


def test_a_number_that_no_float_can_hold_is_not_compared() -> None:
    assert not parse("lr>1", ["lr"]).holds({"lr": 10**400})


def test_all_conditions_must_hold() -> None:
    assert matches([parse(each, ROW) for each in ("mnist", "cost>1")], ROW)
    assert not matches([parse(each, ROW) for each in ("mnist", "cost>3")], ROW)
    assert matches([], ROW)


@pytest.mark.parametrize(("text", "why"), [
    ("colour=red", "no column `colour`; there are cost, name"), ("cost>much", "`much` is none"),
    (">3", "no column ``; there are cost"), ("nme=a", "did you mean `name`"), ("lr=1", r"did you mean `params\.lr`"),
])  # fmt: skip
def test_a_condition_that_cannot_hold_is_refused_with_its_reason(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse(text, [*ROW, "params.lr"])
