"""Findings as a kind: opened by what detectors see, changed, dismissed by people, closed."""
