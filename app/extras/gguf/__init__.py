"""Models in GGUF files, and their conversion into mlx-lm's format."""
