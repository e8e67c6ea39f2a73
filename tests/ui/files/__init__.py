"""Files that are put before the model, where not all fit."""
