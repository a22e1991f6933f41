"""Effects: everything that a program can ask of the outside world, each a value with the code that performs it.

The programs of `promise/` and `run/` await them, and those on workers are in `hosts.fleet.effects`. An effect makes one
attempt and decides nothing; retries and conclusions belong to the programs.
"""

from typing import TYPE_CHECKING

from orchestrator.system.lazy import modules_of

if TYPE_CHECKING:
    from orchestrator.promise.effects import interpreter as interpreter
    from orchestrator.promise.effects import world as world
else:
    __getattr__ = modules_of(__name__)
