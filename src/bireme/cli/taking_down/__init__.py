"""`bireme down`: the end of a cluster on this machine, and the truth about what is left of it."""
