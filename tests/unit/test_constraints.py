"""`constraints.txt`: a version for every library that pyproject.toml names, and one that it allows."""

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
NAMED = [
    Requirement(text)
    for texts in (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
    for text in texts
    if not text.startswith("tpujob[")
]
PINS = [
    Requirement(line)
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
]


@pytest.mark.parametrize("wanted", NAMED, ids=lambda wanted: wanted.name)
def test_every_library_has_a_version_that_pyproject_allows(wanted: Requirement) -> None:
    pins = [pin for pin in PINS if canonicalize_name(pin.name) == canonicalize_name(wanted.name)]
    assert pins, f"`make constraints` writes a version of {wanted.name}"
    for pin in pins:
        (version,) = pin.specifier
        assert version.operator == "==" and wanted.specifier.contains(version.version), str(pin)


def test_each_line_is_one_version_that_pip_takes_as_a_constraint() -> None:
    assert all(len(pin.specifier) == 1 and not pin.extras and pin.url is None for pin in PINS)


def test_the_clean_machine_check_installs_these_versions() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8").replace("\\\n", "")
    assert re.search(r"^PIP_CONSTRAINT=constraints\.txt .* install .*-e ", script, re.MULTILINE)
