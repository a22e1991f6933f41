"""The proof by simulation: the production programs under virtual time, in worlds where everything goes wrong.

- `model/`: the world. `scheduled_faults` has the clock, `process` drives a local program (and kills it), `machine` is the
  laptop with its guardian and ledger, `hosts` the workers with the production watchdog, `fleet` SSH to them, `cloud` the
  emulator's state machine, `cloud_client` its calls, `faults` what goes wrong, `bench` a world of unit tests.
- `scenarios/`: `commands` is what users type, `random_worlds` draws a workload and its faults from a seed, `scarcity` adds
  worlds with too little capacity, `crash_sweep` kills at every step.
- `oracle/`: `oracle` records what is really so (`claims`) and checks the `invariants`, `bounds` is what the table of promises
  allows in each world.
- `mutants/`: bugs of the past, and the scenarios that kill them.

Start with `python -m tests.simulation --seed 5 --trace`.
"""
