"""Where it fits: what nodes have left, what a request needs of them, and which of them hold it."""
