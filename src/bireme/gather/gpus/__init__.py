"""What GPUs do: read from the makers' libraries, a thread for each card, and whose processes use them."""
