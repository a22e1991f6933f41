"""The simulator of the queue: the programs of its runners (`orchestrator/queue/passes.py`) in worlds where everything goes wrong.

- `world`: virtual time, the machines with their runners, users, and what goes wrong in the world of a seed.
- `cloud`: the store with the record; slices, the jobs on them, their watchdogs.
- `hands`: what a runner does there.
- `oracle`: what must hold, whatever goes wrong.
- `mutants`: bugs of the programs and steps, each of which some world notices.

It is light: `python -m tests.simulation.queue --worlds 100000` takes minutes. Start with `--seed 5`, which shows one world.
"""
