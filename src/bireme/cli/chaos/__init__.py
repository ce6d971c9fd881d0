"""`bireme chaos`: faults made on purpose, in rehearsal clusters and one's own, each with what should come of it."""
