"""TPU VMs as local processes: the driver that powers them, SSH and metadata servers, their Pythons, faults of single workers.

`api`, `relay` and `daemon` import this room; it imports `model`, `state` and `wire`. No decision about a node's state
enters: the driver does what `model` asks for, and reports back.
"""
