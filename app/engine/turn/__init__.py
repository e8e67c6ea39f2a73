"""One question: plan, read, decode, and what each of these costs."""
