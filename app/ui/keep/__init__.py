"""How much of the next message is read."""
