"""Where the terminal's bytes come in: pastes survive whatever is in them."""
