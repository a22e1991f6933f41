"""Mutants of what keeps the promise: one change of one line each, made mechanically, which some test has to notice.

`mutants.py` makes them from the syntax tree, `fitting.py` remembers which tests come past which lines, and `trial.py` plays
these tests in a forked process for each mutant: unit tests first, then simulated worlds. What survives them, in code that
other processes run, is tried in a copy of the tree. `python -m tests.mutation` (`make mutate`) goes on where it was stopped.
Survivors that may stay are in `accepted.txt`, each with its reason.
"""
