"""Effects: everything that a program can ask of the outside world, each a value with the code that performs it.

The programs of `promise/` and `run/` await them, and those on workers are in `hosts.fleet.effects`. An effect makes one
attempt and decides nothing; retries and conclusions belong to the programs.
"""
