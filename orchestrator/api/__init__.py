"""The one door: what tpujob does, as the methods of a `Client`, with typed values for what goes in and what comes back.

`client.py` is the Python API (`tpujob/` exports it), `command_line.py` the same as a command calls it. Their calls are the
functions of the rooms beside them, which take a session: `jobs/`, `slices/`, `results/`, `sweeps/`, `guarantee/`, `functions/`.
`session/` has what all calls share. Nothing here parses arguments or prints.
"""
