"""What users do in a world, and worlds drawn from a seed, with scarce capacity, or with a death at every step.

Imported by the tests and the mutants. A world that violated an invariant is kept in `seeds.txt`.
"""
