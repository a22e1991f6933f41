"""What the workers say of a job that does not use their TPU chips, from guest attributes or from their files. Pure.

`vm.chips` says it. Of workers that train alone only all together count: one that has found another one says nothing.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from orchestrator.core.text import json_text
from orchestrator.core.text.alike import worker_names
from orchestrator.core.text.terminal import printable

ATTRIBUTE = "tpujob/chips"
TEXT_CHARS, MOST_WORKERS = 200, 10_000
HINTS = {  # for each use that is worth a line
    "idle": "does the script train on another device? JAX needs `jax[tpu]`, PyTorch needs torch_xla or torch_tpu",
    "busy": "end that process, or take another slice",
    "alone": "call jax.distributed.initialize() or torch.distributed.init_process_group() on every worker",
}


def published(attributes: Iterable[Mapping[str, str]], attempt: str) -> dict[str, str]:
    """Return a line for each use that the workers have published for this attempt."""
    records = []
    for each in attributes:
        try:
            records.append(json_text.loads(each.get(ATTRIBUTE, "")))
        except ValueError:  # there is none, or none that can be read
            continue
    return lines(each for each in records if isinstance(each, dict) and each.get("attempt") == attempt)


def lines(records: Iterable[Any]) -> dict[str, str]:
    """Return a line for each use in the records of the workers of one attempt; anything may be in them."""
    said: dict[str, dict[int, str]] = {use: {} for use in HINTS}
    workers = 0
    for record in records:
        index, of = (record.get("worker"), record.get("workers")) if isinstance(record, dict) else (None, None)
        if type(index) is int and type(of) is int and 0 <= index < of <= MOST_WORKERS:
            said.get(str(record.get("use")), {})[index] = printable(str(record.get("text"))[:TEXT_CHARS])
            workers = of
    return {
        use: f"{worker_names(texts)} ({len(texts)} of {workers}): {texts[min(texts)]}"
        for use, texts in said.items()
        if texts and (use != "alone" or len(texts) == workers)
    }
