"""The screens. They know the engine through `app.protocol` only, and never import mlx."""
