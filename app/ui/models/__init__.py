"""Models: what is here, what fits, downloads, and which pair answers."""
