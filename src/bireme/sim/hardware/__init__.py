"""Hardware that fails with published rates, under training that runs all the time: what healing is worth."""
