"""The user of this process."""

import getpass
import os


def user_name() -> str:
    """Return the user's name; of a container that runs as a number, one made of it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user{os.getuid()}"
