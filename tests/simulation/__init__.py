"""The proof by simulation: the production programs under virtual time, in worlds where everything goes wrong.

Who is who: `timeline` is the clock, `process` drives a local program (and kills it), `machine` is the laptop, `guard` its
guardian, `vm` the workers with the switch that really ships, `sky` the cloud over the emulator's state machine, with `talk`
for what takes several calls. `shapes` is what people do, `faults` what goes wrong, `swarm` draws both from a seed, and
`capacity` those in which there is not enough. `truth` keeps what is really so (in the words of `cases`) and checks the
invariants I1 to I12, `promise` is what the table of promises allows in each world. `crash_sweep` kills at every step;
`mutants` puts old bugs back in, `grounds` is where they are hunted. Begin with `python -m tests.simulation --seed 5 --trace`.
"""
