"""When it fits: what nodes will have left at later moments, and slots promised to waiting jobs."""
