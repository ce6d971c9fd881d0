"""What exists: resources, clusters, jobs, steps, events, commands, observations, reasons. No behaviour beyond derivation."""
