"""Jobs that failed: which are looked into, which are started again, without what, and which are not and why."""
