"""Which files of how many were put before the model, and changing that."""
