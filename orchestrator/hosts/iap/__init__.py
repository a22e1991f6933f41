"""SSH through IAP TCP forwarding: a client of Google's relay, whose tunnels are ordinary sockets for paramiko.

From the bottom up: `relay_session` (the relay's subprotocol, and what one tunnel has sent, received and may resend; no I/O),
`tunnel` (one tunnel over as many WebSockets as it takes), `dialer` (a socket to a worker, for `hosts.ssh`).
The protocol has no public description: it is that of gcloud's `start-iap-tunnel`, which is tested on the same relay.
"""
