"""What a job's program logged: in trackers by the daemon's word, in files by the asking user's own rights."""
