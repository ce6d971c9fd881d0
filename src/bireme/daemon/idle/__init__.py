"""The policy for idle GPUs in the daemon: its file, who looks at what was measured, and the hook that is told."""
