"""What is known of a job's end, read where it lies: logs, the kernel's lines, dumps; and the rules that know them."""
