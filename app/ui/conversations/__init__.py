"""All conversations: the list of Ctrl+O, and the sidebar."""
