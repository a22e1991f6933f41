"""The fault matrix: one row for each disaster, played with real processes against the emulator and its billing meter.

`world` registers rows and is what a row works with, `bounds` is the table of promises on this machine, `rows/` holds the rows
by family. LIMITS.md lists the rows that ask for something that tpujob does not do.
"""
