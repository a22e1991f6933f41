"""The relay of IAP TCP forwarding on loopback: the way to workers without an external address, for tpujob and for gcloud.

Written from Google's two public clients (gcloud, IAP Desktop), and independent of tpujob's own: `messages` (bytes), `tunnels`
(a connection to a worker, over many WebSockets), `relay_api` (routes and faults), `certificate` (gcloud insists on TLS).
"""
