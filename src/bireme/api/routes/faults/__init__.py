"""Routes about what goes wrong: what was decided about findings."""
