"""Tells files of the same name apart, by the shortest end of their paths that differs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from os.path import basename

from app.ingest.filenames import printable
from app.protocol.prompt import Document

_ROOT = "root"
"""The name of the folder `/`."""


def distinct_names(
    paths: Iterable[str],
    folders: Collection[str] = (),
    known: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """A name for each absolute path: its end that no other one has, such as `a/contract.txt`.
    `folders` are those of the paths whose files are named by the folder's name and their paths in
    it. `known` are names that stay as they are."""
    names = {path: basename(path) or _ROOT for path in paths} | dict(known or {})
    fixed = known or {}
    while True:
        sharing: dict[str, list[str]] = defaultdict(list)
        for path, name in names.items():
            sharing[name].append(path)
        for folder in folders:
            for path, name in names.items():
                is_inside = path.startswith(folder.rstrip("/") + "/")
                if name.startswith(names[folder] + "/") and not is_inside:
                    sharing[names[folder]].append(path)
        longer = {
            path: name
            for shared in sharing.values()
            if len(shared) > 1
            for path in shared
            if path not in fixed and (name := _longer(path, names[path])) != names[path]
        }
        if not longer:
            return {path: printable(name) for path, name in names.items()}
        names |= longer


def _longer(path: str, name: str) -> str:
    """The end of a path with one more folder; the same if there is none."""
    if not path.endswith(f"/{name}"):
        return name
    folder = basename(path[: -len(name) - 1])
    return f"{folder}/{name}" if folder else name


def tell_apart(
    documents: Sequence[Document], known: Iterable[Document] = ()
) -> tuple[Document, ...]:
    """Documents with names that tell their files apart, also from those of `known` documents. Files
    and folders that are among these have the same names as there."""
    fixed = {each.origin.path: _file_name(each) for each in known if each.origin is not None}
    folders = {
        each.origin.path: _file_name(each)
        for each in documents
        if each.origin is not None and each.name.endswith("/")
    }

    def root_of(document: Document) -> str:
        """The path of the folder that a document was read with, or of its file."""
        path = "" if document.origin is None else document.origin.path
        for folder, name in folders.items():
            is_inside = path.startswith(folder.rstrip("/") + "/")
            if path == folder or (is_inside and document.name.startswith(name + "/")):
                return folder
        return path

    roots = [root_of(each) for each in documents]
    names = distinct_names(filter(None, roots), folders, fixed)

    def renamed(document: Document, root: str) -> Document:
        if not root or (names[root] == printable(basename(root)) and root not in fixed):
            return document
        rest = document.name[len(folders.get(root) or _file_name(document)) :]
        return replace(document, name=names[root] + rest)

    return tuple(map(renamed, documents, roots))


def _file_name(document: Document) -> str:
    """The name of a document without that of its part."""
    name = document.name.rstrip("/")
    path = "" if document.origin is None else document.origin.path
    start, base = name.rfind("/") + 1, printable(basename(path))
    return name[: start + len(base)] if name.startswith(base, start) else name
