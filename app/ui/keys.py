"""Keys in the order they were pressed.

Textual runs a binding only when its key has bubbled up to the app, and by then the widget may have
had the keys that came after it in the same read: `35`, Enter and a question, typed ahead or over a
slow line, would be a question in the wrong place. So widgets that change what the next key means
run their own bindings themselves, at once.
"""

from __future__ import annotations

from textual.events import Key
from textual.widget import Widget


async def run_own_binding(widget: Widget, event: Key) -> bool:
    """Run the binding that `widget` itself has for this key; whether there was one."""
    bindings = widget._bindings.key_to_bindings.get(event.key)
    if not bindings:
        return False
    event.stop()
    event.prevent_default()
    await widget.run_action(bindings[0].action)
    return True


def forward_key(event: Key, widget: Widget) -> None:
    """Give a key that came to the wrong place to `widget`."""
    event.stop()
    event.prevent_default()
    widget._forward_event(Key(event.key, event.character))
