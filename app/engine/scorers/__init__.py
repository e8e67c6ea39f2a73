"""Which tokens of a prompt matter: one float a token, and which of them are selected."""
