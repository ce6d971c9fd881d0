"""Jobs' runs in experiment trackers: made before a job's first start, ended after its last, read when somebody asks."""
