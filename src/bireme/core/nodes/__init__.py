"""Nodes: their table, what they and operators say, and what is left on them."""
