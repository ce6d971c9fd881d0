"""The daemon's page for Prometheus: what it knows (queue, scheduler, nodes, services) and what machines measured."""
