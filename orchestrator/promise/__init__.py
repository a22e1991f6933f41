"""The reason to exist, in one room: no TPU is billed without a living claim, and nothing is called gone before the API proved
it.

From the bottom up: `lease/` (values and verdicts: lease, claim, absence, attempt; pure), `ledger/` (one SQLite file),
`effects/` (what a program can ask of the world, and the interpreter that performs it), then the programs: `release`,
`renewal`, `standing`, `obligations`, `recover`, `gc`; `guardian` and `guardian_process`, which watch a command; `watchdog`,
which runs on the slice; and `obtain/`, intent and create. Nothing here knows places, hosts or jobs: a cloud is a protocol of
`lease/cloud_api`.
"""
