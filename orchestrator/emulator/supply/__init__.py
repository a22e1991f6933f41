"""What the cloud has for which project: capacity, quota, reservations, queues, locations, preemptions.

Pure. `model`, `wire` and `admin` import this room; it imports `faults` (draws and ranges), `api_errors`, `plain_data` and the
catalog. No node and no operation enters.
"""
