"""What was saved of a job whose slice was lost, and from where its next attempt continues. Pure.

`remote.transfer.saved_work` measures it, `run.program` reports it and records it in the ledger.
"""

from dataclasses import dataclass

from orchestrator.core.text.durations import format_duration
from orchestrator.core.text.sizes import format_size


@dataclass(frozen=True, slots=True)
class SavedState:
    """The saved work of all workers. `step`: of its checkpoint, `metrics_step`: of its last metrics; None where unknown.

    `has_checkpoint`: there is a file with the name that the built-in training uses.
    """

    files: int = 0
    size_bytes: int = 0
    has_checkpoint: bool = False
    step: int | None = None
    metrics_step: int | None = None

    def text(self, saved_s: float | None, *, built_in: bool) -> str:
        """Return what an attempt does with it: `goes on at step 80, saved 4 s before the loss`.

        `saved_s`: seconds from the copy to the loss. `built_in`: the built-in training, which needs a checkpoint to go on.
        """
        count, size = f"{self.files:,} file{'s' if self.files != 1 else ''}", format_size(self.size_bytes)
        if not self.files:
            return "begins at step 0: nothing was saved"
        if built_in and not self.has_checkpoint:
            return f"begins at step 0: no checkpoint was saved, only {count} ({size})"
        if self.step is not None:
            place = f"at step {self.step:,}"
        elif self.metrics_step is not None:
            place = f"from {count} ({size}, metrics up to step {self.metrics_step:,})"
        else:
            place = f"from {count} ({size})"
        return f"goes on {place}" + (
            f", saved {format_duration(saved_s)} before the loss" if saved_s is not None else ""
        )
