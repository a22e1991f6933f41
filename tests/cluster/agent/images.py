"""What the machine lends for an image: no image is pulled here.

An image is a name. A container of it sees the system of this machine (`/usr`, `/etc`, …) read-only and the Python environment
that the tests run in, and has nothing else of it: no home directory, no `/tmp`, none of the checkout.
"""

import fnmatch
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path

TORCH = ("*xla*", "*torch*", "*jax*", "python:*", "*/python:*")  # names of images that can be pulled


@dataclass(frozen=True)
class Image:
    """`lent`: directories that the container sees, read-only, at the same place."""

    lent: tuple[Path, ...]
    path: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)


class Images:
    """A table of name patterns. Names that match none are missing."""

    def __init__(self) -> None:
        self._lent = {pattern: _of_this_python() for pattern in TORCH}

    def find(self, name: str) -> Image | None:
        return next((image for pattern, image in self._lent.items() if fnmatch.fnmatchcase(name, pattern)), None)


def _of_this_python() -> Image:
    """Return the environment of this interpreter. An emulated TPU: torch_xla computes on the CPU."""
    libraries = [Path(place) for place in sys.path if place and Path(place).name == "site-packages"]
    places = {Path(sys.prefix), Path(sys.base_prefix), Path(sysconfig.get_paths()["stdlib"]), *libraries}
    outer = sorted(place for place in places if not any(other in place.parents for other in places))
    env = {"PJRT_DEVICE": "CPU", "TPUJOB_EMULATED_CORES": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return Image(tuple(outer), (f"{sys.prefix}/bin", "/usr/local/bin", "/usr/bin", "/bin"), env)
