"""kill -9 at a chosen line of one module, in a process of its own."""

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any


def dies_at(line: int, module: ModuleType, do: Callable[[], object]) -> bool:
    """Call `do` in a child process that is killed before line number `line`, counted from 0, that it runs of the module.

    False: it finished before it came so far.
    """
    child = os.fork()
    if child == 0:
        left = line

        def trace(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal left
            if frame.f_code.co_filename != module.__file__:
                return None
            left -= event == "line"
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return trace

        try:
            sys.settrace(trace)
            do()
            os._exit(0)
        finally:
            os._exit(1)  # never back into pytest
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL)
    return code == -signal.SIGKILL
