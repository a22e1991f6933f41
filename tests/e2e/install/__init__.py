"""The installed package: the wheel, the Python API, and other Pythons."""
