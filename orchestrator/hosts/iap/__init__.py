"""SSH through IAP TCP forwarding: a client of Google's relay, whose tunnels are ordinary sockets for paramiko.

From the bottom up: `relay_session` (the relay's subprotocol, and what one tunnel has sent, received and may resend; no I/O),
`tunnel` (one tunnel over as many WebSockets as it takes), `dialer` (a socket to a worker, for `hosts.ssh`).
The protocol has no public description: it is that of gcloud's `start-iap-tunnel`, which is tested on the same relay.
"""

from typing import TYPE_CHECKING

from orchestrator.system.lazy import modules_of

if TYPE_CHECKING:
    from orchestrator.hosts.iap import dialer as dialer
    from orchestrator.hosts.iap import relay_session as relay_session
    from orchestrator.hosts.iap import tunnel as tunnel
else:
    __getattr__ = modules_of(__name__)
