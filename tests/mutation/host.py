"""`python -m tests.mutation.host MUTANT KILLER`: one of the killers, in a process in which the mutant lives.

MUTANT `none` is the code as it is. The exit code is the killer's: 0 means that it noticed nothing.
"""

from __future__ import annotations

import sys

import pytest

from tests.mutation.mutants import MUTANTS


def main() -> int:
    name, killer = sys.argv[1:]
    if name != "none":
        MUTANTS[name].apply()
    if killer.startswith("worlds "):
        _, first, count = killer.split()
        sys.argv = ["simulation", "--from", first, "--worlds", count, "--processes", "1"]
        from tests.simulation.__main__ import main as simulate

        return int(simulate() or 0)
    return int(pytest.main(["-q", "-x", "--no-header", "--tb=no", "-p", "no:cacheprovider", "-p", "no:xdist", killer]))


if __name__ == "__main__":
    sys.exit(main())
