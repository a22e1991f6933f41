"""Machines that are reached by SSH: connect, ship, start, follow, stop, collect. `fleet.fleet.Fleet` is the way in.

Places whose workers are VMs use it; `fleet/crew.py` is the contract of the workers of a job at every place.
"""
