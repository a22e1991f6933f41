"""From a plan to a READY slice: drafts, the search among candidates, races, the create itself, and the startup script.

Programs over effects. `run`, `places.preparation` and `run` import this room; it imports `promise`,
`effects` and `runtime`. What a plan contains is decided in `capacity`, what a job runs in `places.preparation`.
"""
