"""Healings as values: what was decided about findings, how far Bireme may go by itself, and the events."""
