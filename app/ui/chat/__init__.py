"""The chat screen: the bars, the composer, and the helpers that act on the conversation."""
