"""tpujob: run training jobs on Cloud TPUs and never pay for a forgotten one."""

from pathlib import Path as _Path

__version__ = "0.1.0"

# Where this package lies: what a child process needs on its path to import it.
ROOT = _Path(__path__[0]).resolve().parent
