"""Failures as they really look, and how many of them the rules and the judgement tell."""
