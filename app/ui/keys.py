"""Handles keys in the order in which they were pressed.

Textual runs a binding only when its key has bubbled up to the app. By then the widget may have got
the keys that came after it in the same read: of `35`, Enter and a question, typed ahead or over a
slow line, the question would end up in the wrong place. So widgets that change what the next key
means run their own bindings at once.
"""

from __future__ import annotations

from textual.events import Key
from textual.widget import Widget


async def run_own_binding(widget: Widget, event: Key) -> bool:
    """Run the binding that `widget` itself has for this key. Returns whether there is one."""
    bindings = widget._bindings.key_to_bindings.get(event.key)
    if not bindings:
        return False
    event.stop()
    event.prevent_default()
    await widget.run_action(bindings[0].action)
    return True


def forward_key(event: Key, widget: Widget) -> None:
    """Give a key that arrived at the wrong widget to this one."""
    event.stop()
    event.prevent_default()
    widget._forward_event(Key(event.key, event.character))
