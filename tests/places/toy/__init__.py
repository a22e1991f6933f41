"""A place of the tests, the smallest that keeps every promise: `place.py` is the place, the rest lets tests play on it."""
