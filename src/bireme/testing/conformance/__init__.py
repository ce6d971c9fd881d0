"""The engine conformance suite: one set of sentences that must be true of every engine, run by who writes one.

Three parts. `port`: the engine alone, spoken to in commands and observations (`Bench`, `PORT_CHECKS`). `scripts`: a
whole cluster that runs on it, used as people use it (`Deployment`, `SCRIPT_CHECKS`). `services`: services on that
cluster (`SERVICE_CHECKS`). CONTRIBUTING.md says how to run them over an engine of your own; `tests/conformance` runs
them over ours.
"""
