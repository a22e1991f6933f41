"""Faults: the kinds, one fault and its JSON, which calls meet which faults, and the replies that faults give.

Pure. `supply`, `model` and `api` import this room; it imports only `api_errors` and `plain_data`. No state of
nodes and no wire enters.
"""
