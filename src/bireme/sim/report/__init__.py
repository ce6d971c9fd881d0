"""A simulation's numbers for people: plots, one HTML page, tables."""
