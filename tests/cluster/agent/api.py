"""The calls of the node agent to the API server, which may be away for a while."""

import asyncio
import datetime
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp

AGAIN_S = 0.3
TRIES = 200  # about a minute without an API server
Object = dict[str, Any]


class Refused(Exception):
    """The API server said no. `status`: 404, 409, …"""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(f"{status} {said}")
        self.status = status


class Api:
    """One connection pool. What cannot be asked is asked again; what is refused raises Refused."""

    def __init__(self, url: str, tls: ssl.SSLContext) -> None:
        connector, never = aiohttp.TCPConnector(ssl=tls, limit=0), aiohttp.ClientTimeout(total=None)
        self._session = aiohttp.ClientSession(url, connector=connector, timeout=never)

    async def close(self) -> None:
        await self._session.close()

    async def call(self, method: str, path: str, body: Object | None = None) -> Object:
        """Make a call. What is patched is merged strategically."""
        data = None if body is None else json.dumps(body)
        headers = {"Content-Type": f"application/{'strategic-merge-patch+' * (method == 'PATCH')}json"}
        limit = aiohttp.ClientTimeout(total=30)
        for tries_left in reversed(range(TRIES)):
            try:
                async with self._session.request(method, path, data=data, headers=headers, timeout=limit) as answer:
                    text = await answer.text()
                    if answer.status < 300:
                        return json.loads(text)  # type: ignore[no-any-return]
                    if answer.status not in (429, 500, 502, 503, 504) or not tries_left:
                        raise Refused(answer.status, text)
            except (aiohttp.ClientConnectionError, TimeoutError):
                if not tries_left:
                    raise
            await asyncio.sleep(AGAIN_S)
        raise AssertionError("unreachable")

    async def watch(self, path: str) -> AsyncIterator[tuple[str, Object]]:
        """Yield (ADDED | MODIFIED | DELETED, object) for ever; what is there already is ADDED.

        After a break everything is listed again; what vanished meanwhile is DELETED.
        """
        known: dict[str, Object] = {}
        while True:
            try:
                listed = await self.call("GET", path)
                now = {each["metadata"]["uid"]: each for each in listed["items"]}
                for uid in [uid for uid in known if uid not in now]:
                    yield "DELETED", known.pop(uid)
                for uid, each in now.items():
                    known[uid] = each
                    yield "ADDED", each
                async for kind, each in self._changes(path, listed["metadata"]["resourceVersion"]):
                    known[each["metadata"]["uid"]] = each
                    if kind == "DELETED":
                        del known[each["metadata"]["uid"]]
                    yield kind, each
            except (aiohttp.ClientError, TimeoutError, Refused):
                await asyncio.sleep(AGAIN_S)

    async def _changes(self, path: str, version: str) -> AsyncIterator[tuple[str, Object]]:
        asked = {"watch": "1", "resourceVersion": version}
        async with self._session.get(path, params=asked, read_bufsize=2**24) as answer:
            if answer.status != 200:
                raise Refused(answer.status, await answer.text())
            async for line in answer.content:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise Refused(event["object"].get("code", 500), event["object"].get("message", ""))
                yield event["type"], event["object"]

    async def event(self, pod: Object, reason: str, message: str) -> None:
        """Record a warning about a pod, as `kubectl describe` shows it."""
        now, about = timestamp(), {key: pod["metadata"][key] for key in ("namespace", "name", "uid")}
        body = {
            "metadata": {"generateName": f"{about['name']}."},
            "involvedObject": {"apiVersion": "v1", "kind": "Pod", **about},
            "reason": reason, "message": message, "type": "Warning",
            "firstTimestamp": now, "lastTimestamp": now, "count": 1,
        }  # fmt: skip
        try:
            await self.call("POST", f"/api/v1/namespaces/{about['namespace']}/events", body)
        except Refused:  # the namespace is being deleted
            return


def timestamp() -> str:
    """Return the time as Kubernetes writes it: whole seconds."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def place_of(pod: Mapping[str, Any]) -> str:
    meta = pod["metadata"]
    return f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
