"""Bugs of the past as mutants of the production code, and the scenarios that kill them, one module for each theme.

Importing the package registers them all. Imported by the tests of the simulation only.
"""

from tests.simulation.mutants import absence, capacity, deadlines, everywhere, gc, watchdog

__all__ = [
    "absence",
    "capacity",
    "deadlines",
    "everywhere",
    "gc",
    "watchdog",
]
