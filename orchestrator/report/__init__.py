"""Reports: what runs and slices cost, what runs measured, and the tables and sentences that show it.

`api` and `cli` import this package; it reads the ledger and the files of a run, and writes and decides nothing. No terminal,
no network: a function returns values, lines or JSON objects.
"""
