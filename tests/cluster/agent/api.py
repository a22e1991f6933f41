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
        connector = aiohttp.TCPConnector(ssl=tls, limit=0)
        self._url, self._session = (
            url,
            aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)),
        )

    async def close(self) -> None:
        await self._session.close()

    async def get(self, path: str) -> Object:
        return await self.call("GET", path)

    async def create(self, path: str, body: Object) -> Object:
        return await self.call("POST", path, body)

    async def patch_status(self, path: str, status: Object) -> Object:
        return await self.call("PATCH", f"{path}/status", {"status": status}, "application/merge-patch+json")

    async def patch(self, path: str, body: Object) -> Object:
        return await self.call("PATCH", path, body, "application/merge-patch+json")

    async def delete(self, path: str, body: Object | None = None) -> Object:
        return await self.call("DELETE", path, body)

    async def call(self, method: str, path: str, body: Object | None = None, kind: str = "application/json") -> Object:
        data = None if body is None else json.dumps(body)
        for tries_left in reversed(range(TRIES)):
            try:
                async with self._session.request(
                    method,
                    self._url + path,
                    data=data,
                    headers={"Content-Type": kind},
                    timeout=aiohttp.ClientTimeout(total=30),
                ) as answer:
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
                listed = await self.get(path)
                now = {each["metadata"]["uid"]: each for each in listed["items"]}
                for uid in [uid for uid in known if uid not in now]:
                    yield "DELETED", known.pop(uid)
                for uid, each in now.items():
                    if (
                        known.get(uid, {}).get("metadata", {}).get("resourceVersion")
                        != each["metadata"]["resourceVersion"]
                    ):
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
        mark = "&" if "?" in path else "?"
        async with self._session.get(
            f"{self._url}{path}{mark}watch=1&resourceVersion={version}", read_bufsize=2**24
        ) as answer:
            if answer.status != 200:
                raise Refused(answer.status, await answer.text())
            async for line in answer.content:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise Refused(event["object"].get("code", 500), event["object"].get("message", ""))
                yield event["type"], event["object"]

    async def event(
        self, about: Object, reason: str, message: str, warning: bool = False, source: str = "kubelet"
    ) -> None:
        """Record an event about a pod or a node, as `kubectl describe` shows it."""
        meta, now = about["metadata"], timestamp()
        namespace = meta.get("namespace", "default")
        involved = {
            "kind": about.get("kind", "Pod"),
            "namespace": meta.get("namespace", ""),
            "name": meta["name"],
            "uid": meta["uid"],
        }
        body = {
            "metadata": {"generateName": f"{meta['name']}.", "namespace": namespace},
            "involvedObject": {"apiVersion": "v1", **{key: value for key, value in involved.items() if value}},
            "reason": reason, "message": message, "type": "Warning" if warning else "Normal",
            "source": {"component": source}, "firstTimestamp": now, "lastTimestamp": now, "count": 1,
        }  # fmt: skip
        try:
            await self.create(f"/api/v1/namespaces/{namespace}/events", body)
        except Refused:  # the namespace is being deleted
            return


def timestamp(at: datetime.datetime | None = None) -> str:
    """Return a time as Kubernetes writes it: whole seconds."""
    return (at or datetime.datetime.now(datetime.UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")


def place_of(pod: Mapping[str, Any]) -> str:
    meta = pod["metadata"]
    return f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
