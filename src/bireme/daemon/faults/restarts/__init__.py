"""Jobs that go on after a failure: where their checkpoints are, why they ended, and what is told to the core of it."""
