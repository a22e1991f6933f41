"""Contracts of the edges: real clients (google-cloud-tpu, gcloud, ssh, the command itself) against the emulator."""
