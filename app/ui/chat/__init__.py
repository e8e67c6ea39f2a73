"""The conversation: what was said, and the box to say more."""
