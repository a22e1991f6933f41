"""The simulator of the queue: its runners' programs (`orchestrator/queue/passes.py`) in worlds where everything goes wrong.

- `world`: virtual time, the machines with their runners, users, and what goes wrong in the world of a seed.
- `cloud`: the store with the record; slices, the jobs on them, their watchdogs.
- `hands`: what a runner does there.
- `oracle`: what must hold, whatever goes wrong.
- `lives`: small lives, in which something happens to a runner at each step.
- `mutants`: bugs of the programs and steps, each of which breaks a rule in some world.

It is light: `python -m tests.simulation.queue --worlds 100000` takes minutes. Start with `--seed 5`, which shows one world.
"""
