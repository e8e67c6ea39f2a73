"""A target that is spread over several machines: who they are, and how they talk."""
