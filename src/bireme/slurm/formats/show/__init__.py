"""The blocks of `scontrol show`: jobs, nodes, partitions, reservations, the account book."""
