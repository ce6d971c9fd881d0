"""Jobs: their table, what events, reports, people and time do to them, and what goes into history."""
