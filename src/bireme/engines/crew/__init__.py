"""What engines share whose work is done by agents: orders, gangs, the links to the agents."""
