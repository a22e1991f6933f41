"""Hostile workers, users and inputs: what they must not be able to read, write, stop or blow up."""
