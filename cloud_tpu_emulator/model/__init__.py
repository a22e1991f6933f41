"""The state machine of the emulated cloud: nodes, queued resources, operations and the billing meter, under a passed-in clock.

Pure: no I/O, no waiting, no randomness but a seed. `state`, `wire`, `vms`, `api` and simulators import this room; it
imports `supply`, `faults` and `api_errors`. No HTTP and no process enters.
"""
