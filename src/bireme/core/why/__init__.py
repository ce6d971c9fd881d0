"""Why a job waits, runs where it does, or ended: answers for people, asked of the state and of the planner itself."""
