"""Files that real programs write, with a planted text, and how much of it specchat reads."""
