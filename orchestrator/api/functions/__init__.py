"""Functions that run on a TPU: `@tpujob.function`, `Client.function` and `Client.call`.

A call becomes a job whose `entry:` is `payload.functions.call`, which runs on the workers. Importing this package costs
nothing; only `api/client.py`, and `tpujob/` by name, import it.
"""
