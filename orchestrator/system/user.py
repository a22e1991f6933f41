"""The user of this process."""

import getpass
import os


def user_name() -> str:
    """Return the user's name; of a container that runs as a number, one made of it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user{os.getuid()}"


def this_process() -> str:
    """Return a name for this process, by which people know whose it is and where it runs."""
    return f"{user_name()}@{os.uname().nodename} (process {os.getpid()})"
