"""The daemon's side of telemetry: takes in what gatherers tell, keeps it, and knows whose GPU each one was when."""
