"""Which devices this machine has, and which of them a task may use."""
