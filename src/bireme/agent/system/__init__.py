"""What the operating system is asked for: processes, signals, descriptors, files, whose rights."""
