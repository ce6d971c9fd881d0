"""Routes about what goes wrong: what is found, and what was decided about it."""
