"""The images of a training: published files, the user's own IDX files, or generated ones, as batches in memory.

`payload.train` and `payload.rank` import this room. It imports neither torch_xla nor anything about processes.
"""
