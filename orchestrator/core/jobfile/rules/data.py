"""The rules of `data:`: a directory of the job, and the place in Cloud Storage that fills it. Pure."""

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from orchestrator.core.jobfile.yaml_source import Path
from orchestrator.core.text.names import shown

_PLACE = re.compile(r"gs://[a-z0-9][a-z0-9._-]{1,220}[a-z0-9](/(?!\.{1,2}(/|$))[^/]+)*/?")
_EXAMPLE = "write for example `./data: gs://my-bucket/my-data`"


def data_problems(places: Mapping[Any, Any]) -> Iterator[tuple[Path, str]]:
    """Yield what is wrong with the places, each at its own."""
    seen: dict[PurePosixPath, Any] = {}
    for key, url in places.items():
        path, directory = ("data", key), PurePosixPath(str(key))
        if directory.is_absolute() or {"..", "~"} & set(directory.parts) or not directory.parts or "\\" in str(key):
            yield path, f"`{shown(str(key))}` is no directory below the job's directory; {_EXAMPLE}"
        elif seen.setdefault(directory, key) != key:
            yield path, f"is the directory `{shown(str(seen[directory]))}` again; write each once"
        elif isinstance(url, str) and (not _PLACE.fullmatch(url) or not url.isprintable()):
            yield path, f"`{shown(url)}` is not a place in Cloud Storage; {_EXAMPLE}"
        elif isinstance(url, str) and (wild := re.search(r"[*?\[]", url)):
            yield path, f"`{shown(url)}` has the wildcard `{wild[0]}`; name the directory that the objects are in"
