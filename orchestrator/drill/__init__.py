"""The drill: ten disasters on a private emulator, for anyone to watch. `tpujob drill` runs it, docs/guarantee.md explains it.

It drives the real CLI in processes of its own and knows only what anybody could see: the emulator's billing meter and its
request log. What was promised comes from `orchestrator.promises`, never from what was measured.
"""
