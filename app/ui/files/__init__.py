"""Which files were chosen for a question, and the screen that changes the choice."""
