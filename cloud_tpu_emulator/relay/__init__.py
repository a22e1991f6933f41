"""The relay of IAP TCP forwarding on loopback: the way to workers without an external address, for tpujob and for gcloud.

Written from Google's two public clients (gcloud, IAP Desktop), and independent of tpujob's own: `tunnels` (bytes, and a
connection to a worker, over many WebSockets), `relay_api` (routes, faults, and TLS, on which gcloud insists).
"""
