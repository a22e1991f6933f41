"""Slices without a job: held ones (`up`, `stop`, `start`, `down`), their extension, and slices lent to a Python program.

Programs over effects. The client imports this room; it imports `engine.leases`, `engine.provision` and `run.monitor`.
"""
