"""What exists: resources, clusters, jobs, steps, events, commands, observations, reasons. Data, no decisions."""
