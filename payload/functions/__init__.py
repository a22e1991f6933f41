"""The functions of the Python API, `@tpujob.function` and `Client.call`, on a worker: `call.py` is their `entry`.

Nothing here imports PyTorch: with `backend: none` a function needs none. The other side is `orchestrator/api/functions/`.
"""
