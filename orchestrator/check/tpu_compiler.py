"""Compiles XLA programs for a TPU that is not there: libtpu has the compiler of every chip, and needs none to compile.

A program of its own, run by the Python of the compiler's environment (`compiler.py`): `python tpu_compiler.py TOPOLOGY`. It is
the only file with private names of jax, whose version is pinned there. Requests and answers are lines of JSON on stdin and
stdout. The first line that it writes describes the topology; then each request, {"file", "replicas"}, gets one answer.

A file is an HloProto, as XLA dumps it with `--xla_dump_hlo_as_proto`.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import libtpu

# Before jax is imported.
os.environ.update(
    JAX_PLATFORMS="cpu",
    TPU_SKIP_MDS_QUERY="1",
    TPU_LIBRARY_PATH=libtpu.get_library_path(),
    ALLOW_MULTIPLE_LIBTPU_LOAD="1",  # beside another check: it opens no chip
)

import jax
import jaxlib
from jax._src import compiler
from jax._src.interpreters import mlir
from jax._src.lib import _jax, xla_client
from jax._src.lib.mlir import ir
from jax.experimental import topologies

CHIP_CONFIGS = {"v4": {"chip_config_name": "megacore"}}  # a chip is one device, as it is on a VM
LARGEST = 8  # values of a program that are named
_TOO_LARGE = re.compile(r"(\S+) exceeds available HBM \((\S+?)\)|Used (\S+) of (\S+) hbm", re.I)
_UNITS = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_NUMBER, _INSTALLED = re.compile(r"\.\d+$"), re.compile(r"/(site|dist)-packages/|/lib/python3[.\d]*/|<frozen")
_NO_NAMES = {"device_data", "constant", "Constant"}  # which say nothing of what it is
_BITS = re.compile(r"[a-z]*?(\d+)")


def bytes_of(text: str) -> int:
    """Return the bytes of a size as libtpu writes it: "24.66G", "(64.50G)"."""
    found = re.search(r"([\d.]+)([KMGT]?)", text)
    assert found is not None, f"libtpu wrote the size {text!r}"
    return int(float(found[1]) * _UNITS[found[2]])


def fields_of(proto: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of each field of a protocol buffer message, in order. Raises IndexError for what is none."""
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = proto[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(proto):
        key = number()
        if key & 7 == 2:
            size = number()
            yield key >> 3, proto[at : at + size]
            at += size
        elif key & 7 == 0:
            yield key >> 3, number()
        else:
            at += 8 if key & 7 == 1 else 4


def module_of(proto: bytes) -> bytes:
    """Return the HloModuleProto of an HloProto: its field 1. Raises ValueError."""
    found = next((value for field, value in fields_of(proto) if field == 1), None)
    if not isinstance(found, bytes):
        raise ValueError("it has no module")
    return found


def donated_to(module: bytes) -> dict[int, int | None]:
    """Return the arguments whose memory an output may take, each with the output that it has to be; None: any.

    They are the fields 8, input_output_alias, and 18, buffer_donor, of an HloModuleProto, which the way to StableHLO loses.
    """
    donated: dict[int, int | None] = {}
    for field, value in fields_of(module):
        for _, entry in fields_of(value) if field in (8, 18) and isinstance(value, bytes) else ():
            assert isinstance(entry, bytes)
            inner = dict(fields_of(entry))
            argument = inner.get(2 if field == 8 else 1, 0)
            output = inner.get(1, b"\0") if field == 8 else None
            assert isinstance(argument, int)
            # Of a packed list of numbers: an output of a flat tuple has one, below 128 for most programs.
            donated[argument] = None if output is None else _packed(output)
    return donated


def processes_of(module: bytes) -> tuple[int, int]:
    """Return for how many replicas and partitions it is: field 15 of an HloModuleProto, its device assignment."""
    given = next((value for field, value in fields_of(module) if field == 15), b"")
    assert isinstance(given, bytes)
    counts = dict(fields_of(given))
    replicas, partitions = counts.get(1, 1), counts.get(2, 1)
    assert isinstance(replicas, int) and isinstance(partitions, int)
    return max(replicas, 1), max(partitions, 1)


def sharded_arguments(module: bytes) -> set[int]:
    """Return the arguments that have a sharding: fields of an HloModuleProto, its entry computation, and its instructions."""
    entry = next((value for field, value in fields_of(module) if field == 6), None)
    found = set()
    for field, computation in fields_of(module):
        if field != 3 or not isinstance(computation, bytes):
            continue
        inside = list(fields_of(computation))
        for kind, instruction in inside if (5, entry) in inside else ():
            if kind == 2 and isinstance(instruction, bytes):
                parts = dict(fields_of(instruction))
                if parts.get(2) == b"parameter" and 40 in parts:
                    number = parts.get(9, 0)
                    assert isinstance(number, int)
                    found.add(number)
    return found


def _packed(numbers: int | bytes) -> int:
    """Return the first number of a packed list; a list of none is the only output."""
    if isinstance(numbers, int):
        return numbers
    value = 0
    for place, byte in enumerate(numbers):
        value |= (byte & 127) << 7 * place
        if byte < 128:
            break
    return value


class Compiler:
    """The compiler for one topology, such as "v5e:2x4"."""

    def __init__(self, topology: str) -> None:
        config = CHIP_CONFIGS.get(topology.partition(":")[0], {})
        self.devices = topologies.get_topology_desc(topology, "tpu", **config).devices

    def described(self) -> dict[str, Any]:
        """Return the devices, and the versions that judge."""
        versions = {"jax": jax.__version__, "jaxlib": jaxlib.__version__, "libtpu": libtpu.__version__}
        return {
            "devices": len(self.devices),
            "kind": self.devices[0].device_kind,
            "versions": versions,
            "hbm_bytes": self.hbm_bytes(),
        }

    def hbm_bytes(self) -> int | None:
        """Return how much HBM of a device a program may use. The compiler says it only of what is too large."""
        kind = f"tensor<{1 << 18}x{1 << 18}xf32>"  # 256 GiB
        text = (
            f"module @m {{ func.func @main() -> {kind} {{ %a = stablehlo.iota dim = 0 : {kind} return %a : {kind} }} }}"
        )
        with mlir.make_ir_context():
            return self._compiled(ir.Module.parse(text), 1, 1).get("hbm_bytes")

    def judged(self, file: str, replicas: int) -> dict[str, Any]:
        """Return what the compiler says of a dumped program, and what the program is."""
        with mlir.make_ir_context():
            try:
                hlo = module_of(Path(file).read_bytes())
                module = ir.Module.parse(_jax.mlir.hlo_to_stablehlo(hlo))
                _donate(module, donated_to(hlo))
            except Exception as error:  # whatever a library raises of a file that it cannot read
                return {"outcome": "unreadable", "why": first_line(error)}
            attributes = module.operation.attributes
            own, partitions = processes_of(hlo)
            replicas = max(own, replicas if partitions == 1 else 1)
            values = list(_values(module))
            described = {
                "name": ir.StringAttr(attributes["sym_name"]).value if "sym_name" in attributes else "",
                "parameters": _parameters(module),
                "replicas": replicas,
                "partitions": partitions,
                "custom_calls": sorted({name for op, *_ in values if (name := _custom_call(op))}),
                "largest": _largest(values),
            }
            if replicas * partitions > len(self.devices):
                why = f"it is for {replicas * partitions} devices, and the slice has {len(self.devices)}"
                return {"outcome": "refused", "why": why, **described}
            if partitions > 1 and sharded_arguments(hlo) - _sharded(module):
                why = f"its shardings are written in a way that jax {jax.__version__} does not know: the program's is newer"
                return {"outcome": "refused", "why": why, **described}
            return described | self._compiled(module, replicas, partitions)

    def _compiled(self, module: Any, replicas: int, partitions: int) -> dict[str, Any]:
        devices = self.devices[: replicas * partitions]
        assignment = [
            [each.id for each in devices[row * partitions : (row + 1) * partitions]] for row in range(replicas)
        ]
        options = compiler.get_compile_options(replicas, partitions, device_assignment=assignment)
        began = time.monotonic()
        try:
            made = devices[0].client.compile(module, xla_client.DeviceList(tuple(devices)), options)
        except Exception as error:  # every refusal is one of these, and says in words what it is
            took_s = time.monotonic() - began
            found = _TOO_LARGE.search(str(error))
            if found is None:
                return {"outcome": "refused", "why": first_line(error), "compile_s": took_s}
            needed, has = (bytes_of(each) for each in (found[1] or found[3], found[2] or found[4]))
            return {"outcome": "too large", "needed_bytes": needed, "hbm_bytes": has, "compile_s": took_s}
        stats = made.get_compiled_memory_stats()
        costs = made.cost_analysis()
        cost = costs[0] if isinstance(costs, list) else costs
        return {
            "outcome": "compiled",
            "compile_s": time.monotonic() - began,
            "argument_bytes": stats.argument_size_in_bytes,
            "output_bytes": stats.output_size_in_bytes,
            "aliased_bytes": stats.alias_size_in_bytes,
            "temporary_bytes": stats.temp_size_in_bytes,
            "code_bytes": stats.generated_code_size_in_bytes,
            "flops": cost.get("flops"),
            "accessed_bytes": cost.get("bytes accessed"),
        }


def first_line(error: Exception) -> str:
    """Return the first line of an error, which may be pages long."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300].rstrip(";")


def _main(module: Any) -> Any:
    return next(op for op in module.body.operations if ir.StringAttr(op.attributes["sym_name"]).value == "main")


def _sharded(module: Any) -> set[int]:
    main = _main(module)
    given = main.attributes["arg_attrs"] if "arg_attrs" in main.attributes else ()  # noqa: SIM401 - it has no `get`
    return {
        number for number, each in enumerate(given) if any(one.name.endswith(".sharding") for one in ir.DictAttr(each))
    }


def _donate(module: Any, donated: dict[int, int | None]) -> None:
    main = _main(module)
    given = main.attributes["arg_attrs"] if "arg_attrs" in main.attributes else None  # noqa: SIM401 - it has no `get`
    attributes = [ir.DictAttr.get({}) for _ in main.arguments] if given is None else list(given)
    for argument, output in donated.items():
        has = {each.name: each.attr for each in ir.DictAttr(attributes[argument])}
        if output is None:
            has["jax.buffer_donor"] = ir.BoolAttr.get(True)
        else:
            has["tf.aliasing_output"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), output)
        attributes[argument] = ir.DictAttr.get(has)
    main.attributes["arg_attrs"] = ir.ArrayAttr.get(attributes)


def _parameters(module: Any) -> list[dict[str, Any]]:
    """Return name, type and shape of each argument; "" for one that the program does not name."""
    return [_described(each.type) | {"name": _named(each.location)} for each in _main(module).arguments]


def _described(kind: Any) -> dict[str, Any]:
    if not isinstance(kind, ir.RankedTensorType):  # a tuple, or a token
        return {"type": "", "shape": [], "bytes": 0}
    element, shape = str(kind.element_type), [int(side) for side in kind.shape]
    bits = _BITS.fullmatch(element)
    count = 1
    for side in shape:
        count *= side
    return {"type": element, "shape": shape, "bytes": count * max(int(bits[1]) if bits else 8, 8) // 8}


def _named(location: Any) -> str:
    """Return what is at this location, as the program names it, and the line of the program; "" for neither.

    Of the calls that led there, the first one outside of installed packages counts.
    """
    text = str(location)
    first = re.match(r'loc\("((?:[^"\\]|\\.)*)"', text)
    name = _NUMBER.sub("", first[1].rpartition(";")[2]) if first else ""
    if name.startswith(("aten__", "xla__", "prim__")):  # torch_xla: "aten__add.12/aten__add"
        name = name.rpartition("/")[2].partition("__")[2]
    name = "" if name in _NO_NAMES else name
    calls = re.findall(r'"([^"]*\.py)":(\d+)', text)
    own = [call for call in calls if not _INSTALLED.search(call[0])] or calls[:1]
    place = f"{Path(own[0][0]).name}:{own[0][1]}" if own else ""
    return f"{name} ({place})" if name and place else name or place


def _values(module: Any) -> Iterator[tuple[Any, dict[str, Any], str]]:
    """Yield each operation with its result and name, also of the functions that `main` calls."""
    todo = [module.operation]
    while todo:
        op = todo.pop()
        for region in op.regions:
            for block in region:
                todo += [each.operation for each in block.operations]
        for result in op.results:
            yield op, _described(result.type), _named(op.location)


def _custom_call(op: Any) -> str:
    return ir.StringAttr(op.attributes["call_target_name"]).value if op.name == "stablehlo.custom_call" else ""


def _largest(values: list[tuple[Any, dict[str, Any], str]]) -> list[dict[str, Any]]:
    """Return the largest values that the program computes, each name and shape once."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for op, described, name in values:
        key = (name or op.name, described["type"], *described["shape"])
        found.setdefault(key, described | {"name": name, "operation": op.name.removeprefix("stablehlo.")})
    return sorted(found.values(), key=lambda each: each["bytes"], reverse=True)[:LARGEST]


def main() -> None:
    """Answer until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libtpu prints is no answer
    compiler = Compiler(sys.argv[1])
    print(json.dumps(compiler.described()), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(compiler.judged(request["file"], request["replicas"])), file=answers, flush=True)


if __name__ == "__main__":
    main()
