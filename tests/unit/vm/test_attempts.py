"""Which process follows an attempt: worker 0 keeps a lock for one, and tells each of the other."""

import subprocess
from typing import Any

from tests.unit.vm.conftest import Worker, parsed

HERE, THERE = "here (process 1)", "there (process 2)"


def said(holder: "subprocess.Popen[bytes]", data: bytes = b"") -> dict[str, Any]:
    """Send this, and return the next answer."""
    assert holder.stdin and holder.stdout
    holder.stdin.write(data)
    holder.stdin.flush()
    return parsed(holder.stdout.readline())


def test_of_two_processes_one_follows_an_attempt_and_both_are_told(worker: Worker) -> None:
    first = worker.popen("hold", "a1", HERE)
    assert said(first) == {"holder": HERE, "held": True}
    assert said(first, b".") == {"asked": None}
    assert worker.ask("hold", "a1", THERE) == {"holder": HERE}
    assert said(first, b".") == {"asked": THERE}
    first.kill()
    first.communicate()
    second = worker.popen("hold", "a1", THERE)
    assert said(second) == {"holder": THERE, "held": True}
    assert said(second, b".") == {"asked": None}, "the first was asked, not this one"
    second.kill()
    second.communicate()


def test_the_lock_is_free_once_its_holder_says_nothing_more(worker: Worker) -> None:
    first = worker.popen("hold", "a1", HERE)
    assert said(first) == {"holder": HERE, "held": True}
    assert first.stdin
    first.stdin.close()
    first.wait()
    assert worker.ask("hold", "a1", THERE) == {"holder": THERE, "held": True}
    assert first.stdout
    first.stdout.close()
