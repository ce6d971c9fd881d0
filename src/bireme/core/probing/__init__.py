"""What the answers of a replica's probes come to."""
