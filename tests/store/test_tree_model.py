"""Random operations on conversations, against a model of a few dictionaries."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
)

from app.protocol.prompt import Role
from app.store.records import State
from app.store.store import Store
from tests.store.samples import versions

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


class Tree:
    """What a conversation should be: for each message its parent and text, in the order written."""

    def __init__(self) -> None:
        self.messages: dict[int, tuple[int | None, str]] = {}
        self.current: int | None = None

    def add(self, id: int, parent: int | None, text: str) -> None:
        self.messages[id] = (parent, text)
        self.current = id

    def branch(self) -> list[tuple[int, str]]:
        found, at = [], self.current
        while at is not None:
            parent, text = self.messages[at]
            found.append((at, text))
            at = parent
        return found[::-1]

    def versions(self, id: int) -> list[int]:
        parent = self.messages[id][0]
        return [other for other, (its, _) in self.messages.items() if its == parent]

    def switch(self, id: int) -> None:
        while children := [child for child, (parent, _) in self.messages.items() if parent == id]:
            id = max(children)
        self.current = id


class StoreMachine(RuleBasedStateMachine):
    conversations = Bundle("conversations")
    messages = Bundle("messages")
    in_trash = Bundle("in_trash")

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.store = Store(Path(self.folder.name))
        self.trees: dict[int, Tree] = {}
        self.trashed: set[int] = set()
        self.order: list[int] = []

    def used(self, conversation: int) -> None:
        self.order = [c for c in self.order if c != conversation] + [conversation]

    def written(self, conversation: int) -> None:
        """What is written in a conversation takes it out of the trash, too."""
        self.trashed.discard(conversation)
        self.used(conversation)

    def tree_of(self, message: int) -> tuple[int, Tree]:
        return next((id, tree) for id, tree in self.trees.items() if message in tree.messages)

    @rule(target=conversations)
    def create(self) -> int:
        id = self.store.create("title").id
        self.trees[id] = Tree()
        self.used(id)
        return id

    @rule(target=messages, conversation=conversations, text=TEXTS)
    def continue_branch(self, conversation: int, text: str) -> int:
        tree = self.trees[conversation]
        message = self.store.add_message(conversation, Role.USER, text)
        assert message.parent == tree.current
        tree.add(message.id, tree.current, text)
        self.written(conversation)
        return message.id

    @rule(target=messages, message=messages, text=TEXTS)
    def edit(self, message: int, text: str) -> int:
        conversation, tree = self.tree_of(message)
        id = self.store.edit(message, text).id
        tree.add(id, tree.messages[message][0], text)
        self.written(conversation)
        return id

    @rule(target=messages, message=messages, parts=st.lists(TEXTS, max_size=3))
    def answer_again(self, message: int, parts: list[str]) -> int:
        conversation, tree = self.tree_of(message)
        reply = self.store.begin_reply(message)
        for number, part in enumerate(parts):
            reply.append(part, [number])
        reply.finish()
        kept = self.store.message(reply.message)
        assert kept.state is State.DONE
        assert kept.token_ids == tuple(range(len(parts)))
        tree.add(reply.message, message, "".join(parts))
        self.written(conversation)
        return reply.message

    @rule(message=messages)
    def switch(self, message: int) -> None:
        self.store.set_branch(message)
        self.tree_of(message)[1].switch(message)

    @rule(target=conversations, conversation=conversations)
    def duplicate(self, conversation: int) -> int:
        copy, old = self.store.duplicate(conversation), self.trees[conversation]
        copied = self.store.tree(copy.id).messages
        ids = dict(zip(old.messages, (message.id for message in copied), strict=True))
        new = Tree()
        for id, (parent, text) in old.messages.items():
            new.messages[ids[id]] = (None if parent is None else ids[parent], text)
        new.current = None if old.current is None else ids[old.current]
        self.trees[copy.id] = new
        self.used(copy.id)
        return copy.id

    @rule(target=in_trash, conversation=conversations)
    def trash(self, conversation: int) -> int:
        self.store.trash(conversation)
        self.trashed.add(conversation)
        return conversation

    @rule(conversation=consumes(in_trash))
    def undo(self, conversation: int) -> None:
        self.store.restore(conversation)
        self.trashed.discard(conversation)

    @rule()
    def start_again(self) -> None:
        self.store.close()
        self.store = Store(Path(self.folder.name))
        assert self.store.notices == []

    @invariant()
    def the_list_is_right(self) -> None:
        if not hasattr(self, "store"):
            return
        newest_first = self.order[::-1]
        for trashed in (False, True):
            listed = [c.id for c in self.store.conversations(trashed)]
            assert listed == [c for c in newest_first if (c in self.trashed) == trashed]

    @invariant()
    def the_trees_are_right(self) -> None:
        for conversation, tree in getattr(self, "trees", {}).items():
            branch = self.store.branch(conversation)
            assert [(message.id, message.text) for message in branch] == tree.branch()
            for message in branch:
                assert list(versions(self.store, message.id)) == tree.versions(message.id)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            self.folder.cleanup()


StoreMachine.TestCase.settings = settings(
    max_examples=settings().max_examples * 3 // 5, stateful_step_count=25, derandomize=True
)
TestTree = StoreMachine.TestCase
