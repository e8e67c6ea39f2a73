"""A program that chats until it is killed: `python -m tests.store.killed FOLDER SEED`.

Says on standard output, a line each and with the time: `open` once the store is, `asked ID` once a
message is committed, `began ID` once its reply is, `wrote ID LENGTH` when that much was appended,
`ended ID LENGTH` once its end is committed. Its text is `text_of`, its token ids count from 0.
Every fifth seed writes one long reply, the others many short ones.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

from app.protocol.prompt import Role
from app.store.store import Store


def text_of(id: int, length: int) -> str:
    return (f"<{id}>" * (length // 3 + 1))[:length]


def main(folder: Path, seed: int) -> None:
    chance = random.Random(seed)

    def say(*words: object) -> None:
        sys.stdout.write(" ".join(map(str, (*words, time.monotonic()))) + "\n")
        sys.stdout.flush()

    with Store(folder) as store:
        say("open", len(store.notices))
        conversation = store.create().id
        while True:
            attached = []
            if chance.random() < 0.3:
                attached.append(store.attach("x.txt", chance.randbytes(50_000)))
            asked = store.add_message(conversation, Role.USER, f"question {seed}", attached)
            say("asked", asked.id)
            reply, length = store.begin_reply(asked.id), 0
            say("began", reply.message)
            for _ in range(10**6 if seed % 5 == 0 else chance.randrange(40)):
                piece = chance.randrange(1, 30)
                reply.append(
                    text_of(reply.message, length + piece)[length:], range(length, length + piece)
                )
                length += piece
                say("wrote", reply.message, length)
                time.sleep(0.002)
            reply.finish()
            say("ended", reply.message, length)
            if chance.random() < 0.2:
                store.trash(store.duplicate(conversation).id)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
