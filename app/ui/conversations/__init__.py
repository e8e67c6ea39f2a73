"""All conversations: finding, opening and looking after them."""
