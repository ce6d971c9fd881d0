"""A day of requests against a service's policy, on a virtual clock: `bireme sim serve`."""
