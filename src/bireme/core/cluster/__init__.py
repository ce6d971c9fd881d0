"""The cluster: its configuration and partitions, and what is done after events were lost."""
