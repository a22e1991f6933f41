"""The kubelet of every node: pods that are bound to our nodes run as processes, and their status says how they do.

One task for each pod goes from its binding to its end. What ends a pod early (`Verdict`): it is deleted, its deadline is over,
or a fault takes its node or evicts it. Left out: probes; init containers, sidecars and restarts, and the pod says so.
"""

import asyncio
import contextlib
import shutil
from collections.abc import Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from tests.cluster.agent import environment, sandbox
from tests.cluster.agent.api import Api, Object, Refused, place_of, timestamp
from tests.cluster.agent.container_log import capture
from tests.cluster.agent.nodes import Nodes
from tests.fakes.pods import NodeLog

AGAIN_S = 0.2
MESSAGE_BYTES = 4096
NOTE = "/dev/termination-log"
DEADLINE = ("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")


@dataclass(frozen=True)
class Verdict:
    """Why a pod ends. No `reason`: its container has ended, or it was deleted. `silent`: its node is gone, nothing is said."""

    grace_s: float
    reason: str = ""
    message: str = ""
    silent: bool = False
    disruption: str = ""  # the reason of the condition DisruptionTarget


@dataclass
class Running:
    """A pod on one of our nodes."""

    pod: Object
    address: str
    directory: Path
    verdict: asyncio.Future[Verdict]
    log: NodeLog = field(default_factory=NodeLog)
    process: asyncio.subprocess.Process | None = None
    task: asyncio.Task[None] | None = None
    waiting: str = "ContainerCreating"
    ended: bool = False

    def end(self, verdict: Verdict) -> None:
        if not self.verdict.done():
            self.verdict.set_result(verdict)


class Kubelet:
    """All pods of the cluster: those of our nodes run here."""

    def __init__(self, api: Api, directory: Path, base: int, nodes: Nodes) -> None:
        directory.mkdir()
        self.pods: dict[str, Object] = {}  # every pod of the cluster, by uid
        self.running: dict[str, Running] = {}
        self._api, self._directory, self._base, self._nodes = api, directory, base, nodes
        self._addresses = 0

    async def watch(self) -> None:
        """Follow the pods of the cluster, for ever."""
        async for kind, pod in self._api.watch("/api/v1/pods"):
            uid = pod["metadata"]["uid"]
            if kind == "DELETED":
                self.pods.pop(uid, None)
                await self._forget(uid)
                continue
            self.pods[uid] = pod
            self._notice(uid, pod)

    def of_node(self, name: str) -> list[Running]:
        return [each for each in self.running.values() if each.pod["spec"].get("nodeName") == name]

    def find(self, namespace: str, name: str) -> Running | None:
        wanted = {"namespace": namespace, "name": name}.items()
        return next((each for each in self.running.values() if each.pod["metadata"].items() >= wanted), None)

    def _notice(self, uid: str, pod: Object) -> None:
        node = self._nodes.there.get(pod["spec"].get("nodeName"))
        if node is None or not node.alive:
            return
        running = self.running.get(uid)
        if running is None:
            self._addresses += 1
            high, low = divmod(self._addresses, 250)
            address = f"127.{self._base}.{high % 250 + 1}.{low + 1}"
            verdict: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
            running = self.running[uid] = Running(pod, address, self._directory / uid, verdict)
            running.task = asyncio.create_task(self._run(running))
        running.pod = pod
        if "deletionTimestamp" in pod["metadata"]:
            running.end(Verdict(pod["metadata"].get("deletionGracePeriodSeconds") or 0))
            if running.ended:
                running.task = asyncio.create_task(self._delete(running))

    async def _forget(self, uid: str) -> None:
        """The object is gone: so are the container, its log and its volumes."""
        running = self.running.pop(uid, None)
        if running is None:
            return
        running.end(Verdict(0, silent=True))
        if running.process is not None:
            sandbox.kill(running.process)
            await running.process.wait()
        shutil.rmtree(running.directory, ignore_errors=True)
        self._write_hosts(running.pod["metadata"]["namespace"])

    # -- the life of one pod -------------------------------------------------------------------------------------------

    async def _run(self, running: Running) -> None:
        try:
            await self._live(running)
        except Refused:  # the object is gone
            if running.process is not None:
                sandbox.kill(running.process)
        except Exception as error:  # said where the tests look, instead of nowhere
            await self._api.event(running.pod, "AgentFailed", repr(error))
            raise

    async def _live(self, running: Running) -> None:
        spec = running.pod["spec"]
        await self._say(running, "Pending", podIP=running.address, podIPs=[{"ip": running.address}])
        if (limit_s := spec.get("activeDeadlineSeconds")) is not None:
            grace_s = spec.get("terminationGracePeriodSeconds", 30)
            asyncio.get_running_loop().call_later(limit_s, running.end, Verdict(grace_s, *DEADLINE))
        preparing = asyncio.ensure_future(self._prepare(running))
        await asyncio.wait({preparing, running.verdict}, return_when=asyncio.FIRST_COMPLETED)  # type: ignore[type-var]
        if running.verdict.done():
            preparing.cancel()
            await asyncio.gather(preparing, return_exceptions=True)
            await self._finish(running, running.verdict.result(), None)
            return
        container = preparing.result()
        running.process = await sandbox.start(container)
        assert running.process.stdout is not None
        captured = asyncio.create_task(capture(running.process.stdout, running.log))
        started = timestamp()
        await self._say(running, "Running", {"running": {"startedAt": started}}, ready=True)
        exited = asyncio.ensure_future(sandbox.exit_code(running.process, container))
        await asyncio.wait({exited, running.verdict}, return_when=asyncio.FIRST_COMPLETED)  # type: ignore[type-var]
        verdict = Verdict(0)
        if not exited.done():
            verdict = running.verdict.result()
            await self._stop(running, verdict.grace_s, exited)
        code = await exited
        await captured
        await self._finish(running, verdict, self._terminated(running, code, started))

    async def _stop(self, running: Running, grace_s: float, exited: Awaitable[int]) -> None:
        if grace_s > 0:
            sandbox.terminate(running.process)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(exited), grace_s)
        if running.process.returncode is None:
            sandbox.kill(running.process)

    async def _finish(self, running: Running, verdict: Verdict, terminated: Object | None) -> None:
        running.ended = True
        running.log.close()
        self._write_hosts(running.pod["metadata"]["namespace"])
        if verdict.silent:
            return
        failed = verdict.reason or terminated is None or terminated["exitCode"] != 0
        said: Object = {"reason": verdict.reason, "message": verdict.message} if verdict.reason else {}
        if verdict.disruption:
            said["conditions"] = [_condition("DisruptionTarget", True, verdict.disruption, verdict.message)]
        state = {"terminated": terminated} if terminated else {"waiting": {"reason": running.waiting}}
        await self._say(running, "Failed" if failed else "Succeeded", state, **said)
        if "deletionTimestamp" in running.pod["metadata"]:
            await self._delete(running)

    async def _delete(self, running: Running) -> None:
        """Confirm a deletion; finalizers may keep the object."""
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": running.pod["metadata"]["uid"]}}
        with contextlib.suppress(Refused):
            await self._api.call("DELETE", place_of(running.pod), body)

    def _terminated(self, running: Running, code: int, started: str) -> Object:
        with (running.directory / "note").open("rb") as note:
            message = note.read(MESSAGE_BYTES).decode(errors="replace")
        reason, ended = "Completed" if code == 0 else "Error", timestamp()
        return {"exitCode": code, "reason": reason, "message": message, "startedAt": started, "finishedAt": ended}

    # -- before it starts ----------------------------------------------------------------------------------------------

    async def _prepare(self, running: Running) -> sandbox.Container:
        """Return the container once its image and volumes are there, which may be never."""
        pod, spec = {**running.pod, "status": {"podIP": running.address}}, running.pod["spec"]
        container = spec["containers"][0]
        name = container["image"]
        if spec.get("initContainers") or len(spec["containers"]) > 1 or spec["restartPolicy"] != "Never":
            said = "the node agent of the tests runs one container, once"
            await self._wait(running, "CreateContainerConfigError", said)
        if (image := environment.image(name)) is None:
            said = f'Failed to pull image "{name}": rpc error: code = NotFound desc = failed to resolve "{name}": not found'
            await self._wait(running, "ImagePullBackOff", f'Back-off pulling image "{name}": ErrImagePull: {said}')
        running.directory.mkdir()
        while True:
            try:
                mounts = await environment.prepare(self._api, pod, running.directory)
                env = await environment.variables(self._api, pod, image)
                break
            except environment.NotThere as missing:
                await self._api.event(pod, "FailedMount", str(missing))
                await asyncio.sleep(AGAIN_S)
        (running.directory / "note").touch()
        (running.directory / "root").mkdir()
        self._write_hosts(pod["metadata"]["namespace"])
        note = sandbox.Mount(NOTE, running.directory / "note")
        return sandbox.Container(
            [*(container.get("command") or ()), *(container.get("args") or ())],
            env,
            environment.hostname(pod),
            running.directory / "root",
            running.directory / "said",
            [*environment.mounts(running.directory), note, *mounts],
            image.lent,
        )

    async def _wait(self, running: Running, reason: str, message: str) -> NoReturn:
        """Say why it does not start, which it never does."""
        running.waiting = reason
        await self._say(running, "Pending", {"waiting": {"reason": reason, "message": message}})
        while True:
            await asyncio.Future()

    async def _say(
        self, running: Running, phase: str, state: Object | None = None, ready: bool = False, **said: Any
    ) -> None:
        """Write the status of the pod. `said`: further fields."""
        container = running.pod["spec"]["containers"][0]
        state = state or {"waiting": {"reason": running.waiting}}
        one = {"name": container["name"], "image": container["image"], "imageID": "", "restartCount": 0, "ready": ready}
        one |= {"started": "running" in state, "state": state}
        conditions = [_condition("Ready", ready), *said.pop("conditions", ())]
        status = {"phase": phase, **said, "conditions": conditions, "containerStatuses": [one]}
        await self._api.call("PATCH", f"{place_of(running.pod)}/status", {"status": status})

    # -- names ---------------------------------------------------------------------------------------------------------

    def _write_hosts(self, namespace: str) -> None:
        """Give every pod of a namespace the names of all that have an address, as the headless service of a JobSet does."""
        every = [each for each in self.running.values() if each.pod["metadata"]["namespace"] == namespace]
        here = [each for each in every if each.directory.exists()]
        met = [each for each in here if each.pod["spec"].get("subdomain") and not each.ended]
        named = [environment.line(each.pod, each.address) for each in met]
        for each in here:
            own = f"127.0.0.1 localhost\n{each.address} {environment.hostname(each.pod)}\n"
            path = each.directory / "hosts"
            with path.open("r+b" if path.exists() else "wb") as file:  # in place: it is mounted
                file.write("".join([own, *named]).encode())
                file.truncate()


def _condition(kind: str, is_true: bool, reason: str = "", message: str = "") -> Object:
    said = {"type": kind, "status": str(is_true), "reason": reason, "message": message}
    return {**said, "lastTransitionTime": timestamp()}
