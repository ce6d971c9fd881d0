"""bireme diagnose: why a job died, or what any log says about it; as text or JSON."""
