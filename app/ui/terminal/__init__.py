"""Terminal input and output: pastes that arrive unchanged, the clipboard, the window title.

`driver` and `paste` override private methods of Textual 8.2.8 (see `app/ui/transcript`).
"""
