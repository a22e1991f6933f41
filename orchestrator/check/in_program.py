"""Watches a program that `tpujob check` plays: Python imports a copy of this, sitecustomize.py in PYTHONPATH, at its start.

Before XLA is loaded, it makes XLA dump each program that it compiles (`XLA_FLAGS`), which a command of the job may have set
itself. It counts the steps, writes a line of JSON for each, and after the last one waits to be ended. torch_xla is told how
many processes the job has on the TPU; of those only this one is there. Standard library only: this is the job's Python.

`TPUJOB_CHECK` is the directory for dumps and lines, `TPUJOB_CHECK_STEPS` how many steps are played, `TPUJOB_CHECK_LEAST_S` for
how long at least, `TPUJOB_ONE_OF` of how many processes the program is one, and `TPUJOB_CHECK_DEVICES` how many devices a JAX
program finds.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent
DUMP = "--xla_dump_to={} --xla_dump_hlo_as_proto --xla_dump_hlo_pass_re="
# A loop that prepares something, such as one over layers, is seldom longer, and the steps come after it.
LEAST_S = float(os.environ.get("TPUJOB_CHECK_LEAST_S", "4"))
TURNS = 10
# Of a jax.Array: what reads it from the device.
TO_HOST = ("__float__", "__int__", "__bool__", "__index__", "__array__", "__format__", "item", "tolist")


class Watch:
    """What is seen of one process."""

    def __init__(self, directory: Path, steps: int) -> None:
        self.steps, self.step = steps, 0
        self.dumps = directory / "dumps" / str(os.getpid())
        self._lines = directory / f"steps-{os.getpid()}.jsonl"
        self._lock = threading.RLock()
        self._first = 0.0  # when the first step had ended

    def say(self, **line: Any) -> None:
        with self._lock, self._lines.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def stepped(self, transfers: int) -> None:
        """Count a step. `transfers`: how often the program has read from the device by now."""
        with self._lock:
            self.step += 1
            self._first = self._first or time.monotonic()
            files = len(list(self.dumps.glob("*.before_optimizations.hlo.pb"))) if self.dumps.is_dir() else 0
            self.say(step=self.step, graphs=files, transfers=transfers)

    def end_if_enough(self, turns: int, first: float) -> None:
        """Do not return after the last step: what plays the program ends it.

        `turns`: how often the program did again what seems to be its loop, since `first` (time.monotonic). They count where it
        has no steps that are known as such.
        """
        now = time.monotonic()
        is_enough = self.step >= self.steps and now - self._first >= LEAST_S
        if is_enough or (not self.step and turns >= TURNS * self.steps and now - first >= 2 * LEAST_S):
            self.say(done=True)
            sys.stdout.flush()
            while True:
                time.sleep(3600)

    def flag(self, more: str = "") -> None:
        """Make XLA dump what it compiles, whatever flags it was given; and compile: a program of a cache leaves no dump."""
        os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
        os.environ.pop("XLA_PERSISTENT_CACHE_PATH", None)
        flags = os.environ.get("XLA_FLAGS", "")
        wanted = DUMP.format(self.dumps)
        if str(self.dumps) not in flags:
            self.dumps.mkdir(parents=True, exist_ok=True)
            os.environ["XLA_FLAGS"] = f"{flags} {wanted}".strip()
        if more and more.partition("=")[0] not in flags:
            os.environ["XLA_FLAGS"] += f" {more}"


def watch_torch_xla(module: ModuleType, watch: Watch) -> None:
    """Count each `torch_xla.sync()`, by whatever name, after a step of an optimizer; say how many processes there are."""
    optimizers: Any = importlib.import_module("torch.optim.optimizer")
    inner: Any = module._XLAC
    metrics, runtime = sys.modules["torch_xla.debug.metrics"], sys.modules["torch_xla.runtime"]
    mark: Callable[..., Any] = inner._xla_step_marker
    seen = {"updates": 0, "syncs": 0}
    began = time.monotonic()

    def updated(*_arguments: Any) -> None:
        seen["updates"] += 1

    optimizers.register_optimizer_step_post_hook(updated)

    @functools.wraps(mark)
    def marked(*arguments: Any, **named: Any) -> Any:
        found = mark(*arguments, **named)
        seen["syncs"] += 1
        if seen["updates"]:
            seen["updates"] = 0
            data = metrics.metric_data("TransferFromDeviceTime")
            watch.stepped(data[0] if data else 0)
        watch.end_if_enough(seen["syncs"], began)
        return found

    inner._xla_step_marker = marked
    if "TPUJOB_ONE_OF" in os.environ:
        _be_one_of(int(os.environ["TPUJOB_ONE_OF"]), runtime, watch)
    for owner, name in ((module, "launch"), (sys.modules.get("torch_xla.distributed.xla_multiprocessing"), "spawn")):
        if owner is not None and hasattr(owner, name):
            setattr(owner, name, _launching(getattr(owner, name), runtime, watch))
    spmd: Callable[..., Any] = runtime.use_spmd

    @functools.wraps(spmd)
    def use_spmd(*arguments: Any, **named: Any) -> Any:
        os.environ["CPU_NUM_DEVICES"] = os.environ["TPUJOB_CHECK_DEVICES"]
        return spmd(*arguments, **named)

    runtime.use_spmd = use_spmd  # type: ignore[attr-defined]
    runtime.initialize_cache = lambda *_, **__: None  # type: ignore[attr-defined]


def _launching(launch: Callable[..., Any], runtime: ModuleType, watch: Watch) -> Callable[..., Any]:
    """Return the function that starts the processes of a job: only the first one, which takes itself for one of all."""

    @functools.wraps(launch)
    def launched(fn: Any, args: Any = (), nprocs: int | None = None, *others: Any, **named: Any) -> Any:
        if "TPUJOB_ONE_OF" not in os.environ:  # the training of tpujob knows it
            os.environ["TPUJOB_ONE_OF"] = "1" if nprocs == 1 else os.environ["TPUJOB_CHECK_DEVICES"]
        _be_one_of(int(os.environ["TPUJOB_ONE_OF"]), runtime, watch)
        return launch(fn, args, nprocs, *others, **named)

    return launched


def _be_one_of(count: int, runtime: ModuleType, watch: Watch) -> None:
    watch.say(world=count)
    runtime._WORLD_SIZE = count  # type: ignore[attr-defined]  # what world_size() returns
    model = sys.modules["torch_xla.core.xla_model"]

    def rendezvous(tag: str, payload: bytes = b"", replicas: Sequence[int] = ()) -> list[bytes]:
        return [payload]

    model.rendezvous = rendezvous  # type: ignore[attr-defined]  # there are no others to wait for


def watch_jax(module: ModuleType, watch: Watch) -> None:
    """Count the calls of compiled functions that get what they returned before, as a training step gets its weights.

    Of several such functions, the one that is called least has the steps.
    """
    tree: Any = importlib.import_module("jax.tree_util")
    reads = Reads()
    calls: dict[int, int] = {}  # of each function
    carried: dict[int, int] = {}
    inside = threading.local()
    began = time.monotonic()

    class Counted:
        """A function that `jax.jit` made."""

        def __init__(self, made: Any) -> None:
            functools.update_wrapper(self, made, updated=())
            self._made = made
            self._returned: dict[int, weakref.ref[Any]] = {}

        def __getattr__(self, name: str) -> Any:
            return getattr(self._made, name)

        def __get__(self, instance: Any, owner: Any = None) -> Any:
            return self if instance is None else functools.partial(self, instance)

        def __call__(self, *arguments: Any, **named: Any) -> Any:
            if getattr(inside, "call", False):  # while another one is traced
                return self._made(*arguments, **named)
            given = tree.tree_leaves((arguments, named))
            inside.call = True
            try:
                found = self._made(*arguments, **named)
            finally:
                inside.call = False
            calls[id(self)] = calls.get(id(self), 0) + 1
            if any(each is self._returned.get(id(each), _dead)() for each in given):
                carried[id(self)] = carried.get(id(self), 0) + 1
            returned = [each for each in tree.tree_leaves(found) if hasattr(type(each), "block_until_ready")]
            self._returned = {id(each): weakref.ref(each) for each in returned}
            reads.count_of(returned)
            if carried and min(carried.values()) > watch.step:
                watch.stepped(reads.count)
            watch.end_if_enough(max(calls.values()), began)
            return found

    def counting(make: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(make)
        def made(*arguments: Any, **named: Any) -> Any:
            found = make(*arguments, **named)
            # `jit(static_argnums=0)` returns a decorator in some versions.
            is_function = bool(arguments) or "fun" in named
            return Counted(found) if is_function else (lambda fun: Counted(found(fun)))

        return made

    for name in ("jit", "pmap"):
        setattr(module, name, counting(getattr(module, name)))


def _dead() -> None:
    return None


class Reads:
    """How often the program reads an array from the device."""

    def __init__(self) -> None:
        self.count = 0
        self._kinds: set[type] = set()

    def count_of(self, arrays: Sequence[Any]) -> None:
        """Count reads of arrays of these types from now on."""
        for kind in {type(each) for each in arrays} - self._kinds:
            self._kinds.add(kind)
            for name in TO_HOST:
                with contextlib.suppress(AttributeError, TypeError):  # a tracer, or a class that cannot be changed
                    setattr(kind, name, self._counted(getattr(kind, name)))

    def _counted(self, own: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(own)
        def read(*arguments: Any, **named: Any) -> Any:
            self.count += 1
            return own(*arguments, **named)

        return read


class Finder(importlib.abc.MetaPathFinder):
    """Prepares XLA before it is loaded, and watches what loads it."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._after: dict[str, Callable[[ModuleType, Watch], None]] = {"torch_xla": watch_torch_xla, "jax": watch_jax}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name in ("torch_tpu", "tensorflow", "jax", "torch_xla") and "." not in name:
            self._watch.say(imports=name)
        if name in ("jax", "jaxlib"):
            self._watch.flag(f"--xla_force_host_platform_device_count={os.environ['TPUJOB_CHECK_DEVICES']}")
        elif name in ("torch_xla", "_XLAC"):
            self._watch.flag()
        watcher = self._after.pop(name, None)
        if watcher is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = Watched(spec.loader, watcher, self._watch)  # type: ignore[assignment]
        return spec


class Watched:
    """A loader, and what is done once it has loaded its module."""

    def __init__(self, loader: Any, watcher: Callable[[ModuleType, Watch], None], watch: Watch) -> None:
        self._loader, self._watcher, self._watch = loader, watcher, watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._watcher(module, self._watch)


def import_next() -> None:
    """Import the sitecustomize that this one stands before."""
    others = [each for each in sys.path if Path(each or ".").resolve() != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if "TPUJOB_CHECK" in os.environ:
    sys.meta_path.insert(0, Finder(Watch(Path(os.environ["TPUJOB_CHECK"]), int(os.environ["TPUJOB_CHECK_STEPS"]))))
import_next()
