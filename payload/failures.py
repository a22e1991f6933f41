"""Failures that a person can act on, each with its exit code.

Everything that reaches `python -m payload`'s exit is one of these and is printed as one line, or is a bug and is printed
with its traceback (exit code 1).
"""

from __future__ import annotations

# What a BadConfig about missing packages tells to do.
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
    """The loss is not a number any more."""

    exit_code = 3


class DataError(PayloadError):
    """The images cannot be had, or are not what they should be."""

    exit_code = 4


class PeerLost(PayloadError):
    """Another process went away while this one waited for it: a consequence, hardly ever the cause."""

    exit_code = 5


class WorldError(PayloadError):
    """The processes do not form the world they should: a reduction would hang, abort or silently do nothing."""

    exit_code = 6


class CannotSave(PayloadError):
    """A checkpoint cannot be written, for want of space perhaps; the one before it is whole."""

    exit_code = 7


class TrainingInterrupted(PayloadError):
    """We were asked to stop, and a checkpoint was written at that very step."""

    exit_code = 143
