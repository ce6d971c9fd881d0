"""The autoscaler at work: what the router, the replicas and Prometheus say, as figures; and what follows, as wishes."""
