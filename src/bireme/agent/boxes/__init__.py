"""Boxes: what tasks in an image see as their machine. Made once for a script or a step, entered by each task."""
