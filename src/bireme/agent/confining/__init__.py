"""Holding a job to its share: cgroups, namespaces, device filters, and what this machine grants of them."""
