"""What is really so in a world, and the invariants that it must keep.

Imported by the model, which reports events to it. It reads neither labels nor decisions of the programs under test, and its
bounds come from `orchestrator.drill.bounds` alone.
"""
