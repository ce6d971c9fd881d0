"""A cluster of virtual nodes whose GPUs are played: for rehearsals, where `bireme chaos` breaks them."""
