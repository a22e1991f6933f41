"""The proof by simulation: the production programs under virtual time, in worlds where everything goes wrong.

Who is who: `timeline` is the clock, `process` drives a local program (and kills it), `machine` is the laptop, `guard` its
guardian, `vm` the workers with the switch that really ships, `sky` the cloud over the emulator's state machine. `shapes` is
what people do, `faults` what goes wrong, `swarm` draws both from a seed. `truth` keeps what is really so and checks the
invariants I1 to I12, `promise` is the table of bounds. `crash_sweep` kills at every step; `mutants` puts old bugs back in,
`grounds` is where they are hunted. Begin with `python -m tests.simulation --seed 5 --trace`.
"""
