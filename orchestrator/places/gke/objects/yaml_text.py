"""Objects of Kubernetes as YAML that every reader takes alike: text that could be read as a number is in quotes. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

# Readers differ in what is a number (`1e3`, `0x1f`, `1_000`, `12:30`) or a truth value (`y`, `on`): such text is quoted.
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*(:[A-Za-z0-9_./-]+)*")
_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True  # a label that is written twice is the same value, not a reference


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None if _PLAIN.fullmatch(text) and text.lower() not in _WORDS else '"'
    if "\n" in text and not re.search(r"[^\n\x20-\x7e\xa0-\uffff]| \n", text):
        style = "|"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def to_yaml(documents: Iterable[Mapping[str, Any]], comment: Sequence[str] = ()) -> str:
    """Return the documents as YAML, each after `---`, below lines of comment."""
    parts = [f"# {line}\n" if line else "#\n" for line in comment]
    for document in documents:
        parts.append("---\n")
        parts.append(
            yaml.dump(
                document, Dumper=_Dumper, sort_keys=False, default_flow_style=False, allow_unicode=True, width=2**20
            )
        )
    return "".join(parts)
