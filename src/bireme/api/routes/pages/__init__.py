"""Routes that people need who look at pages: what a change would do, what a script means, who asked for what."""
