"""What the screens show, without widgets: drafts, open conversations, and their store."""
