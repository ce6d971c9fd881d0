"""Checkpoints where jobs leave them: which layouts there are, which one is whole, and the program that looks."""
