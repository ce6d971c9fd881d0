"""Keepers, the small processes above every batch script and step from which nothing can get away."""
