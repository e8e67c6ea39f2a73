"""Loaded models: prompts, embeddings, token streams, speculative decoding."""
