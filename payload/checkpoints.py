"""Checkpoints: written atomically by process 0, verified by hash, and sufficient to resume bit for bit.

A checkpoint holds weights, optimizer state and position. Random numbers and learning rate follow from seed and step, so there
is no other state, and the number of processes may change. `checkpoint.pt` is the newest, `checkpoint-<step>.pt` are older.
"""

from __future__ import annotations

import hashlib
import io
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from payload import artifacts
from payload.backends import Backend
from payload.failures import BadConfig, CannotSave, Diverged

SCHEMA = 2
NEWEST = "checkpoint.pt"
DESCRIPTION = "checkpoint.json"  # step, file and hash of the newest: for readers without torch

Say = Callable[[str], None]


class Checkpoints:
    """The checkpoints of one training. `identity` is the part of the configuration that determines its results."""

    def __init__(self, directory: Path, identity: dict[str, Any], say: Say, *, keep: int = 1) -> None:
        self._directory, self._identity, self._say, self._keep = directory, identity, say, keep
        self._newest_step: int | None = None

    # -- writing -----------------------------------------------------------------------------------------------------

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Write a checkpoint, on process 0 only. The previous one stays until the new one is on the disk.

        Raises Diverged if a tensor is not finite, CannotSave if the file cannot be written.
        """
        state = {"schema": SCHEMA, "step": step, "identity": self._identity, **on_host(state)}
        if not all(torch.isfinite(tensor).all() for tensor in tensors(state) if tensor.is_floating_point()):
            raise Diverged(f"the weights after step {step} are not finite; {self._last_good()}")
        state["sha256"] = digest(state)
        buffer = io.BytesIO()
        torch.save(state, buffer)
        newest = self._directory / NEWEST
        try:
            if self._keep > 1 and self._newest_step not in (None, step):
                older = self._directory / f"checkpoint-{self._newest_step:09}.pt"
                older.unlink(missing_ok=True)
                os.link(newest, older)
            artifacts.write_whole(newest, lambda file: file.write(buffer.getbuffer()))
            described = {"step": step, "file": NEWEST, "sha256": hashlib.sha256(buffer.getbuffer()).hexdigest()}
            artifacts.write_json(self._directory / DESCRIPTION, described)
            for path in self._older()[max(self._keep - 1, 0) :]:
                path.unlink()
        except OSError as error:
            size = len(buffer.getbuffer()) / 1e6
            raise CannotSave(
                f"a checkpoint of {size:,.1f} MB cannot be written to {self._directory} ({error.strerror}); {self._last_good()}"
            ) from None
        self._newest_step = step

    def _last_good(self) -> str:
        step = self._newest_step
        return "there is no other" if step is None else f"the checkpoint of step {step} is intact"

    def _older(self) -> list[Path]:
        """Return the older checkpoints, newest first."""
        return sorted(self._directory.glob("checkpoint-*.pt"), reverse=True)

    # -- reading -----------------------------------------------------------------------------------------------------

    def load(self, backend: Backend) -> dict[str, Any] | None:
        """Return the newest intact checkpoint, on the CPU; None if there is none. Every process must call it.

        Raises BadConfig if the checkpoint is of a training with other settings.
        """
        content = backend.broadcast(self._newest_whole() if backend.rank == 0 else b"")
        if not content:
            return None
        state: dict[str, Any] = _load(content)
        self._newest_step = state["step"]
        return state

    def _newest_whole(self) -> bytes:
        for path in (self._directory / NEWEST, *self._older()):
            if not path.is_file():
                continue
            content = path.read_bytes()
            try:
                state = _load(content)
                expected = state.pop("sha256")
                if state["schema"] != SCHEMA or digest(state) != expected:
                    raise ValueError("its hash differs")
            except Exception as error:  # torch raises various types for a damaged file
                reason = (str(error).splitlines() or [type(error).__name__])[0][:100]
                self._say(f"{path.name} is damaged and is skipped: {reason}")
                continue
            self._check_identity(path, state["identity"])
            return content
        return b""

    def _check_identity(self, path: Path, found: dict[str, Any]) -> None:
        keys = {**found, **self._identity}
        changed = [key for key in keys if found.get(key) != self._identity.get(key)]
        if changed:
            key = changed[0]
            raise BadConfig(
                f"{path} is of another training ({key} was {found.get(key)!r}, now it is {self._identity.get(key)!r}); "
                "set `resume: false` to start again, or use another directory"
            )


class Interval:
    """Whether a checkpoint is due: every `count` steps, epochs or seconds (config.interval)."""

    def __init__(self, every: tuple[int, str], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._count, self._unit = every
        self._monotonic, self._last = monotonic, monotonic()

    def due(self, *, step: int, epoch: int, ends_epoch: bool) -> bool:
        """Return whether a checkpoint is due after `step`, counted from 1 at the start of the training."""
        if self._unit == "steps":
            return step % self._count == 0
        if self._unit == "epochs":
            return ends_epoch and epoch % self._count == 0
        return self._monotonic() - self._last >= self._count

    def saved(self) -> None:
        self._last = self._monotonic()


def _load(content: bytes) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    return state


def on_host(value: Any) -> Any:
    """Return the same nest of dictionaries and lists with every tensor on the CPU, so that any machine loads it."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    if isinstance(value, dict):
        return {key: on_host(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [on_host(item) for item in value]
    return value


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield all tensors in nested dictionaries and lists."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors(item)


def digest(value: Any) -> str:
    """Return a SHA-256 of the contents in their order, independent of torch's file format."""
    hashed = hashlib.sha256()

    def add(item: Any) -> None:
        if isinstance(item, torch.Tensor):
            hashed.update(f"{item.dtype} {tuple(item.shape)}".encode())
            hashed.update(item.contiguous().reshape(-1).view(torch.uint8).numpy())
        elif isinstance(item, dict | list):
            hashed.update(f"{type(item).__name__} {len(item)}".encode())
            for part in item.items() if isinstance(item, dict) else enumerate(item):
                hashed.update(repr(part[0]).encode())
                add(part[1])
        else:
            hashed.update(repr(item).encode())

    add(value)
    return hashed.hexdigest()
