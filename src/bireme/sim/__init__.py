"""The simulator: the real kernel, planner and store on a virtual clock, with the simulated engine."""
