"""The fold over all kinds: the registry, and what asks it (`apply`, `due`, `intake`, `outstanding`)."""
