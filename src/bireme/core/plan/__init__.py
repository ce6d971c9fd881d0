"""The planner: which job, where, when. `plan(state, policy, now)` reads and decides; it changes nothing."""
