"""The state, the tables of what may happen to it, and the functions that turn requests and reports into events."""
