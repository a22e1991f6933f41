"""The routes of the relay, /v4/connect and /v4/reconnect, its faults, and its TLS port, which starts on request.

Both routes are on every port of the daemon, behind the same authentication. A refusal is a close code, as with Google's relay,
or an HTTP status in place of the WebSocket, which a fault gives.
"""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import os
import socket
import ssl
from pathlib import Path

from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cloud_tpu_emulator.api.api_call import Api, ApiCall, Json, route
from cloud_tpu_emulator.api.every_request import cut
from cloud_tpu_emulator.faults.api_errors import ApiError, bad_field
from cloud_tpu_emulator.faults.fault import Fault
from cloud_tpu_emulator.faults.plain_data import check_list, check_value
from cloud_tpu_emulator.model import reach
from cloud_tpu_emulator.model.records import Node
from cloud_tpu_emulator.relay import tunnels
from cloud_tpu_emulator.relay.bastion import Bastion
from cloud_tpu_emulator.relay.tunnels import SILENT, Link, RelayTunnel, Tunnels
from cloud_tpu_emulator.vms.driver import Driver
from cloud_tpu_emulator.vms.metadata_server import hostname

SSH = "22"


class RelayApi(Api):
    """The relay. `runner`: of the daemon's app, for the TLS port; the daemon sets it."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver)
        self.runner: web.AppRunner | None = None
        self.tunnels = Tunnels(driver)
        self._bastion: Bastion | None = None
        self._starting = asyncio.Lock()
        self._address: Json | None = None

    # --- the daemon's own paths ---------------------------------------------------------------------------------------

    @route("GET", "/_emulator/relay")
    async def status(self, call: ApiCall) -> Json:
        return self._address or {"url": None, "authorities": None}

    @route("POST", "/_emulator/relay")
    async def start(self, call: ApiCall) -> Json:
        """Serve TLS on a free port, besides plain HTTP, if it is not served yet."""
        async with self._starting:
            if self._address is None:
                self._address = await self._serve_tls()
        return self._address

    @route("GET", "/_emulator/bastion")
    async def bastion_status(self, call: ApiCall) -> Json:
        return {} if self._bastion is None else self._bastion.as_json()

    @route("POST", "/_emulator/bastion")
    async def start_bastion(self, call: ApiCall) -> Json:
        """Start a bastion, in place of an older one: `{"keys": ["ssh-ed25519 AAAA…"], "max_startups": 10}`."""
        body = await call.body()
        most = check_value("max_startups", body.get("max_startups", 10), int, least=1, most=1000)
        keys = [str(line).split() for line in check_list("keys", body.get("keys", []))]
        if not all(len(parts) >= 2 for parts in keys):
            raise bad_field("keys are lines like ssh-ed25519 AAAA….")
        if self._bastion is not None:
            await self._bastion.close()
        self._bastion = Bastion(self.driver, {parts[1] for parts in keys}, most)
        await self._bastion.open()
        return self._bastion.as_json()

    @route("GET", "/compute/v1/projects/{project}/zones/{zone}/instances/{instance}")
    async def get_instance(self, call: ApiCall) -> Json:
        """Reply to what `gcloud compute start-iap-tunnel` asks before it connects."""
        node, worker = self._find(call.parts["project"], call.parts["zone"], call.parts["instance"])
        if node is None:
            raise ApiError("NOT_FOUND", f"The resource '{call.request.path.partition('/v1/')[2]}' was not found")
        place = f"{self.driver.account.url}/compute/v1/projects/{node.project}/zones/{node.zone}"
        return {
            "kind": "compute#instance",
            "id": str(int(node.uid) + worker),
            "name": hostname(node, worker),
            "zone": place,
            "selfLink": f"{place}/instances/{hostname(node, worker)}",
            "status": "RUNNING",
            "networkInterfaces": [{"name": "nic0", "networkIP": "127.0.0.1"}],
        }

    async def close(self) -> None:
        """End all tunnels, and the bastion."""
        self.tunnels.close()
        if self._bastion is not None:
            await self._bastion.close()

    async def _serve_tls(self) -> Json:
        assert self.runner is not None, "the daemon listens"
        context, authorities = await asyncio.to_thread(make, self.driver.store.directory / AUTHORITY, "localhost")
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        await web.SockSite(self.runner, listener, ssl_context=context).start()
        return {"url": f"wss://localhost:{listener.getsockname()[1]}/v4", "authorities": str(authorities)}

    # --- the relay ----------------------------------------------------------------------------------------------------

    @route("GET", "/v4/connect")
    async def connect(self, call: ApiCall) -> web.StreamResponse:
        """Open a tunnel to the instance and the port that the query names."""
        request, query = call.request, call.query
        node, worker = self._find(query.get("project", ""), query.get("zone", ""), query.get("instance", ""))
        fault = self._fault("relay.connect", node.name if node else "")
        if (refused := await self._refused(request, fault)) is not None:
            return refused
        websocket = await _upgrade(request)
        if not reach.may_tunnel(self.state.settings):
            return await _closed(websocket, tunnels.NOT_AUTHORIZED)
        if node is None:
            return await _closed(websocket, tunnels.LOOKUP_FAILED)
        if not reach.lets_ssh_in(self.state.settings, reach.RELAY):
            return await _closed(websocket, tunnels.NOT_REACHED)
        port = query.get("port", "")
        try:
            tunnel = await self.tunnels.open(node.name, node.hosts[worker].ssh_port if port == SSH else int(port))
        except (OSError, ValueError, OverflowError):
            return await _closed(websocket, tunnels.NOT_REACHED)
        return await self._serve(request, tunnel, Link(websocket, fault), None)

    @route("GET", "/v4/reconnect")
    async def reconnect(self, call: ApiCall) -> web.StreamResponse:
        """Resume the tunnel that the query names, for a client that has so many bytes of it."""
        request, tunnel = call.request, self.tunnels.get(call.query.get("sid", ""))
        fault = self._fault("relay.reconnect", tunnel.node if tunnel else "")
        if (refused := await self._refused(request, fault)) is not None:
            return refused
        websocket = await _upgrade(request)
        if tunnel is None:
            return await _closed(websocket, tunnels.SID_UNKNOWN)
        if tunnel.in_use:
            return await _closed(websocket, tunnels.SID_IN_USE)
        has = call.query.get("ack", "")
        if not has.isascii() or not has.isdigit():
            return await _closed(websocket, tunnels.INVALID_ACK)
        return await self._serve(request, tunnel, Link(websocket, fault), int(has))

    async def _serve(
        self, request: web.Request, tunnel: RelayTunnel, link: Link, client_has: int | None
    ) -> web.StreamResponse:
        code = await tunnel.serve(link, client_has)
        if tunnel.ended:
            self.tunnels.forget(tunnel)
        if code is None:
            cut(request)
            return link.websocket
        return await _closed(link.websocket, code)

    def _find(self, project: str, zone: str, instance: str) -> tuple[Node | None, int]:
        """Return the READY node and the worker that an instance is; None: there is none."""
        for node in self.state.nodes.values():
            if (node.project, node.zone, node.state) == (project, zone, "READY"):
                for worker in range(len(node.hosts)):
                    if hostname(node, worker) == instance:
                        return node, worker
        return None, 0

    def _fault(self, operation: str, node: str) -> Fault | None:
        decision = self.state.decide(operation, "client", node, self.driver.clock())
        if decision.effect is not None:
            self.driver.changed()
        return decision.effect

    async def _refused(self, request: web.Request, fault: Fault | None) -> web.StreamResponse | None:
        """Return what a fault gives in place of a tunnel; None: nothing."""
        if fault is None:
            return None
        if fault.kind == "relay_reject":
            return web.Response(status=int(fault.parameters["status"]))
        if fault.kind == "relay_refuse":
            return await _closed(await _upgrade(request), int(fault.parameters["close_code"]))
        if fault.kind == SILENT and not fault.parameters["after_bytes"]:
            websocket = await _upgrade(request)
            async for _ in websocket:
                continue
            return websocket
        return None


async def _upgrade(request: web.Request) -> web.WebSocketResponse:
    websocket = web.WebSocketResponse(protocols=(tunnels.SUBPROTOCOL,), compress=False, max_msg_size=1 << 17)
    await websocket.prepare(request)
    return websocket


async def _closed(websocket: web.WebSocketResponse, code: int) -> web.WebSocketResponse:
    await websocket.close(code=code, message=tunnels.REASONS.get(code, "").encode())
    return websocket


# The certificate of a TLS port, by an authority that is made for it: gcloud and gRPC connect over TLS only.
#
# The private keys stay in memory, but for the moment in which OpenSSL reads one from a file of the state directory.

AUTHORITY = "relay-ca.pem"
VALID = datetime.timedelta(days=3650)


def make(trusted: Path, name: str) -> tuple[ssl.SSLContext, Path]:
    """Return a new server's context for this host name. Write the authority that clients must trust, and return its file."""

    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def signed(subject: str, key: ec.EllipticCurvePrivateKey, *extensions: x509.ExtensionType) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        draft = x509.CertificateBuilder(
            named(trusted.name), named(subject), key.public_key(), x509.random_serial_number()
        )
        draft = draft.not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(now + VALID)
        for extension in (
            *extensions,
            x509.SubjectKeyIdentifier.from_public_key(key.public_key()),
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()),
        ):
            draft = draft.add_extension(
                extension, critical=isinstance(extension, x509.BasicConstraints | x509.KeyUsage)
            )
        return draft.sign(authority, hashes.SHA256())

    authority, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    # Of the nine uses of a key: to sign certificates and lists of revoked ones.
    uses = x509.KeyUsage(*(number in (5, 6) for number in range(9)))
    top = signed(trusted.name, authority, x509.BasicConstraints(ca=True, path_length=0), uses)
    names = [x509.DNSName(name), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    leaf = signed(
        name,
        key,
        x509.BasicConstraints(ca=False, path_length=None),
        x509.SubjectAlternativeName(names),
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
    )
    trusted.write_bytes(top.public_bytes(form.Encoding.PEM))
    secret = trusted.with_name(f".{trusted.name}.{os.getpid()}")
    with os.fdopen(os.open(secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(leaf.public_bytes(form.Encoding.PEM))
        file.write(key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()))
    try:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(secret)
    finally:
        secret.unlink()
    return context, trusted
