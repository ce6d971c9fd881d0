"""A JAX program that finds its peers by Slurm's variables alone, then adds up one number of every process."""

from __future__ import annotations

import socket

import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils

jax.distributed.initialize()
gathered = multihost_utils.process_allgather(jnp.array([jax.process_index() + 1]))
print(f"{jax.process_index()} of {jax.process_count()} on {socket.gethostname()}: {int(gathered.sum())}")
jax.distributed.shutdown()
