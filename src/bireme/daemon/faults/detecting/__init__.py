"""Detectors in the daemon: what gatherers tell is judged by `core/faults/detection`, and the kernel hears of faults."""
