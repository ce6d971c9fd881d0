"""The shape of a kind, and the law of its life."""
