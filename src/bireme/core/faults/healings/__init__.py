"""Healings as a kind: decided, approved or refused, done, undone; with the audit of each."""
