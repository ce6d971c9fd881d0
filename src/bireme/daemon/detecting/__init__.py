"""Detectors in the daemon: what gatherers tell is judged (`core/detection`), and the kernel hears what is wrong."""
