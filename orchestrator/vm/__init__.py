"""What runs on a TPU VM without our package: supervises a job's phases there, takes bundles in, packs artifacts.

Standard library only, Python 3.8 or newer, and imports only of siblings: `remote.agent` ships these files as one small
zip archive, `~/tpujob/bin/agent-<sha256>.pyz`, and calls it as `python3 agent.pyz VERB ARGS…` (see `__main__`).
"""
