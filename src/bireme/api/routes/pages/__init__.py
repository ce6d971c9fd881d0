"""What people who look at pages (`web/`) need beyond what commands ask: sessions, what has changed, what a change would
do, what a script means, who asked for what."""
