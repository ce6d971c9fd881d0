"""The composition root: settings, paths, wiring, real clock, start and stop. Importing this package costs nothing."""
