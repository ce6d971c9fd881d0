"""`bireme images`: a user's container images on this machine."""
