"""A model that is loaded: its prompt, its embeddings and its stream of tokens."""
