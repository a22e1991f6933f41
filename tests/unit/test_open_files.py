"""The limit of open files is raised as far as it is needed, and no further than the system lets it."""

import subprocess
import sys

import pytest

from orchestrator import open_files

ASK = """
import resource
from orchestrator import open_files
print(open_files.allow({wanted}), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "limit"),
    [(100, 500, 300, 300), (100, 500, 900, 500), (200, 500, 100, 200)],
    ids=["raised", "as far as it goes", "enough"],
)
def test_the_soft_limit_is_raised_to_what_is_wanted_up_to_the_hard_one(
    soft: int, hard: int, wanted: int, limit: int
) -> None:
    line = f'ulimit -Sn {soft} && ulimit -Hn {hard} && exec "$0" -c "$1"'
    argv = ["bash", "-c", line, sys.executable, ASK.format(wanted=wanted)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(limit), str(limit)]


def test_files_in_use_are_counted() -> None:
    before = open_files.in_use()
    with open(__file__):  # noqa: PTH123
        assert open_files.in_use() == before + 1
