"""From compressed layers to one folder: decompressing, reading tar, laying entries over each other inside the root."""
