"""Runs of this machine as they are recorded: the list of them, one or several in full, their logs, and their names.

The commands of the group `results` and the Python API call this package. Nothing here prints or reads arguments.
"""
