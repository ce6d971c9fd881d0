"""Grafana's dashboards and Prometheus' alert rules for Bireme, made of two lists: `python -m deploy.grafana`."""
