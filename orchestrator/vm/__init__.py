"""What runs on a TPU VM without our package: supervises a job's phases there, takes bundles in, packs artifacts.

Standard library only, Python 3.8 or newer, and imports only of siblings: `remote.ssh.agent` ships these files into
`~/tpujob/bin/agent-<hash>/vm/` and calls `main` of `__main__` with a verb and its arguments.
"""
