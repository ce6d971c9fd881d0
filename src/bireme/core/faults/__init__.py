"""What goes wrong: seen by detectors, kept as findings, decided about as healings, fenced, and jobs started again."""
