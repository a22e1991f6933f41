"""How the processes of a host start: where they are placed, who supervises them, and what torch_tpu adds.

`payload.__main__` imports this room. The training itself runs in `payload.rank`, one process for each core.
"""
