"""Objects as YAML: what is read again is what was written, by readers of YAML 1.1 and 1.2 alike."""

import re

import yaml
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.jobfile import yaml_source
from orchestrator.places.gke.objects.manifest import documents
from orchestrator.places.gke.objects.yaml_text import to_yaml
from tests.unit.places.gke.objects.jobs import job

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def test_the_objects_are_read_again_as_they_are() -> None:
    made = documents(job(queue="tpu", slices=2))
    assert list(yaml.safe_load_all(to_yaml(made))) == list(made)


@given(st.dictionaries(TEXTS, TEXTS | st.integers() | st.booleans(), max_size=4))
def test_any_text_is_read_again_as_it_is(value: dict[str, object]) -> None:
    assert list(yaml.safe_load_all(to_yaml([value]))) == [value]


def test_text_that_a_reader_could_take_for_a_number_or_a_truth_value_is_in_quotes() -> None:
    ids = [
        "1234567e12",
        "0x1234abcd",
        "0b10101010",
        "0123456789",
        "1_000",
        "12:30",
        "on",
        "y",
        "No",
        "null",
        "~",
        "1.5",
        "",
    ]
    text = to_yaml([{"labels": ids}])
    assert re.findall(r'^- (".*")$', text, re.M) == [f'"{each}"' for each in ids]


def test_scripts_are_readable_and_a_line_is_never_folded() -> None:
    text = to_yaml([{"script": "set -e\necho 1\n", "long": "x" * 500 + " " + "y" * 500}])
    assert "script: |\n  set -e\n  echo 1\n" in text
    assert max(len(line) for line in text.splitlines()) > 1000


def test_a_comment_stands_above_the_first_document() -> None:
    text = to_yaml([{"kind": "A"}, {"kind": "B"}], ["for you", ""])
    assert text == "# for you\n#\n---\nkind: A\n---\nkind: B\n"
    assert yaml_source.read(text.partition("---")[0]).mistakes  # nothing but comments
