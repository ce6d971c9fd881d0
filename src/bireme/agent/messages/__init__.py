"""What is said to an agent and by it: frames, lines, the daemon's orders, what the agent tells."""
