"""Steps: one `srun` inside a job each; their table, their making, what events and reports do to them."""
