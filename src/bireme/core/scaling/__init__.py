"""The autoscaler, pure: what was measured of a service, its policy and the time in; how many replicas, and why, out."""
