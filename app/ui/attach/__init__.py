"""What goes with a question: pastes, files and folders."""
