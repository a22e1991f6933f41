"""The exit code of a command: 75 while a slice may still be billed, else that of its error (`errors.py`), else 0.

docs/cli.md explains each code; `cli/dispatch.py` ends the process with it.
"""

from orchestrator.errors import CloudError, TeardownUnproven, TpujobError

NOT_PROVEN = TeardownUnproven.exit_code  # 75: outranks every other code


def exit_code(error: TpujobError | None, *, unproven: bool = False) -> int:
    """Return the exit code for this error. `unproven`: a slice was released without a proof of its absence."""
    if unproven:
        return NOT_PROVEN
    if isinstance(error, TeardownUnproven):
        return CloudError.exit_code  # it took long, but the absence is proven now
    return error.exit_code if error else 0
