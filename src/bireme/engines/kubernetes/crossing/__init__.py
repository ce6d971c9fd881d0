"""What crosses between the daemon's machine and the pods: the agents' calls, input, output, scripts."""
