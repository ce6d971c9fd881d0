"""Speaks with container registries (the distribution protocol of Docker and OCI): manifests and blobs come in."""
