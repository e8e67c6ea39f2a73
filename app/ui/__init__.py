"""The screens. They see the engine through `app.engine.messages` only, and never import mlx."""
