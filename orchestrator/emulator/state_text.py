"""The whole state as JSON text, at every change: what changes no more is put into words only once.

Thousands of done operations and closed bills are kept; without this, each change after them would cost 50 ms.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from orchestrator.emulator.cloud_state import CloudState
from orchestrator.emulator.meter import Bill
from orchestrator.emulator.records import Operation, dump_operation


class StateText:
    def __init__(self) -> None:
        self._operations: dict[str, str] = {}  # by name
        self._bills: dict[tuple[str, float], str] = {}  # by uid and when they were opened

    def of(self, state: CloudState) -> str:
        """What `CloudState.load` reads."""
        self._operations = {op.name: self._operation(op) for op in state.operations.values() if op.done}
        self._bills = {(bill.uid, bill.since): self._bill(bill) for bill in state.meter.bills if bill.until is not None}
        operations = (self._operations.get(op.name) or _text(dump_operation(op)) for op in state.operations.values())
        bills = (self._bills.get((bill.uid, bill.since)) or _text(asdict(bill)) for bill in state.meter.bills)
        rest = _text(state.dump_rest())
        return f'{rest[:-1]},"operations":{_list(operations)},"bills":{_list(bills)}}}'

    def _operation(self, operation: Operation) -> str:
        return self._operations.get(operation.name) or _text(dump_operation(operation))

    def _bill(self, bill: Bill) -> str:
        return self._bills.get((bill.uid, bill.since)) or _text(asdict(bill))


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _list(texts: Iterable[str]) -> str:
    return f"[{','.join(texts)}]"
