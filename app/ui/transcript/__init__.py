"""The scrolling part of the chat: questions and answers, of which only those near the visible part
have widgets.

Here, and in `app/ui/terminal`, private names of Textual are used, which any release may change:

- `transcript`: `Widget._check_anchor`, `_anchor_released`, `ScrollBar._reactive_position`
- `table`: `MarkdownBlock._content`, `_blocks`, `_token`, `_update_from_block`

Checked against Textual 8.2.8. After an update of Textual run `tests/ui/transcript`,
`tests/ui/chat` and `tests/ui/test_keys.py`, compare these methods with the new release, and
change the version here.
"""
