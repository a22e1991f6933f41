"""The drill: ten disasters on private emulators. `tpujob drill` runs it, docs/guarantee.md explains it.

It drives the real CLI in processes of its own, and measures with the emulator's billing meter and request log only. Bounds
come from `orchestrator.drill.bounds`. It imports the emulator's `control` and `text`; nothing of what keeps the promises
enters.
"""
