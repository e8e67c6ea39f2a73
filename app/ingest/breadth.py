"""Chooses files of a folder that has more than may be read: some of each folder before all of
one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence


def in_breadth(paths: Sequence[str], most: int) -> set[str]:
    """At most `most` of the paths, which are in reading order: each folder shares its number
    equally between its own files and its subfolders, and what one does not need the others get."""
    chosen: set[str] = set()
    waiting = [(0, list(paths), most)]
    while waiting:
        at, inside, share = waiting.pop()
        if len(inside) <= share:
            chosen.update(inside)
            continue
        groups = defaultdict[str, list[str]](list)
        for path in inside:
            name, below, _ = path[at:].partition("/")
            groups[name if below else ""].append(path)
        for name, size in _shares({name: len(each) for name, each in groups.items()}, share):
            if name:
                waiting.append((at + len(name) + 1, groups[name], size))
            else:
                chosen.update(groups[name][:size])
    return chosen


def _shares(sizes: dict[str, int], total: int) -> Iterable[tuple[str, int]]:
    """Divide `total`, which is less than the sum of the sizes, so that none gets more than its
    size, and those that get less all get the same, but for one."""
    left = total
    for number, (name, size) in enumerate(sorted(sizes.items(), key=lambda each: each[1])):
        share = min(size, -(-left // (len(sizes) - number)))
        left -= share
        yield name, share
