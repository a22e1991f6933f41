"""From a plan to a READY slice: drafts, the search among candidates, races, the create itself, and the startup script.

Programs over effects. `run`, `places.preparation` and `engine.slices` import this room; it imports `engine.leases`,
`effects` and `runtime`. What a plan contains is decided in `core.planning`, what a job runs in `places.preparation`.
"""
