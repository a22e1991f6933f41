"""Failures with an exit code each.

`python -m payload` prints a PayloadError as one line. Any other exception is a bug: it is printed with its traceback, and
the exit code is 1.
"""

from __future__ import annotations

# The remedy in a BadConfig about missing packages.
INSTALL = (
    "pip install 'torch==2.9.0' 'torch_xla==2.9.0' (on a TPU VM: 'torch_xla[tpu]==2.9.0'); "
    "torch and torch_xla must have the same version"
)
INSTALL_TORCH_TPU = (
    "pip install 'torch_tpu==0.2.0', in an environment of its own without torch_xla (it needs Python 3.11 and torch 2.11, or "
    "newer); "
    "backend xla trains on the same TPU without it"
)


class PayloadError(Exception):
    exit_code = 1


class BadConfig(PayloadError):
    """The configuration, the environment variables or the installed packages cannot work."""

    exit_code = 2


class Diverged(PayloadError):
    """The loss or the weights are not finite."""

    exit_code = 3


class DataError(PayloadError):
    """The images cannot be obtained, or are damaged."""

    exit_code = 4


class PeerLost(PayloadError):
    """Another process ended while this one waited for it. Usually a consequence of the failure, not its cause."""

    exit_code = 5


class WorldError(PayloadError):
    """The processes do not form the expected world: a reduction would hang, abort or silently do nothing."""

    exit_code = 6


class CannotSave(PayloadError):
    """A checkpoint cannot be written, for example because the disk is full. The previous checkpoint is intact."""

    exit_code = 7


class TrainingInterrupted(PayloadError):
    """A stop was requested, and a checkpoint was written at the end of the step."""

    exit_code = 143
