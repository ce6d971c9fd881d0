"""What MPI programs ask of whoever started them."""
