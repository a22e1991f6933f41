"""The state directory: the lock of the one daemon, its token, the files that survive a kill -9, and the cloud's clock.

`vms` and `daemon` import this room; it imports `model` and `plain_data`. No HTTP and no process enters.
"""
