"""The daemon process, `control` (how clients find, start and stop it), and the `ssh` and `scp` that gcloud runs.

Only `control` is for other packages; it imports nothing but the standard library and `peers` at its top. The other modules may
import every room of the emulator.
"""
