"""The house itself: what lies where, what is pinned, and what must not be written anywhere."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.tables import table

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")

TOP_LEVEL = {
    *(".ci", ".github", ".gitignore", "LICENSE", "Makefile", "README.md", "pyproject.toml"),
    *("requirements.lock", "app", "assets", "benchmarks", "docs", "packaging", "tests"),
    *("CONTRIBUTING.md", "CHANGELOG.md", "findings"),
}
MAX_LINES = 800

REGISTRY = re.compile(r"\b(?:pypi|pythonhosted|npmjs|debian|ubuntu)\.(?:org|com|io)\b", re.I)
NAMES_A_REGISTRY = Path("packaging/formula.py")
"""A Homebrew formula must say where each file is fetched from, so this one may."""
MACHINE_PATH = re.compile(r"(?<![\w.~}>-])/(?:root|work|Users|home|private|mnt)/[\w.]")


@functools.cache
def project_files() -> tuple[Path, ...]:
    """Every file that is, or is about to be, under version control. Relative to ROOT."""
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z", "-co", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return tuple(Path(name) for name in listed.split("\0") if name and (ROOT / name).is_file())


@functools.cache
def texts() -> list[tuple[Path, str]]:
    """Our own text files: not the texts of others that lie in assets/."""
    found = []
    for path in project_files():
        if path.parts[0] == "assets" and path.suffix == ".txt":
            continue
        data = (ROOT / path).read_bytes()
        if b"\0" not in data and path.suffix != ".safetensors":
            found.append((path, data.decode("utf-8")))
    return found


def test_python_3_11_to_3_14_is_allowed() -> None:
    allowed = SpecifierSet(PROJECT["requires-python"])
    assert "3.10.9" not in allowed
    for minor in range(11, 15):
        assert f"3.{minor}.0" in allowed
        assert f"Programming Language :: Python :: 3.{minor}" in PROJECT["classifiers"]


def test_the_top_level_holds_only_what_the_design_names() -> None:
    assert {path.parts[0] for path in project_files()} <= TOP_LEVEL


def test_files_stay_short() -> None:
    lengths = {
        str(path): text.count("\n")
        for path, text in texts()
        if path.parts[0] == "app" and path.suffix == ".py"
    }
    assert lengths
    assert {name: count for name, count in lengths.items() if count > MAX_LINES} == {}


@table("pattern", [REGISTRY, MACHINE_PATH])
def test_no_host_name_of_a_registry_and_no_path_of_a_machine(pattern: re.Pattern[str]) -> None:
    searched = [(p, t) for p, t in texts() if (pattern, p) != (REGISTRY, NAMES_A_REGISTRY)]
    found = [f"{path}: {hit[0]}" for path, text in searched for hit in pattern.finditer(text)]
    assert found == []


PRIVATE_WORDS = (
    r"foretold|foretells?|foreseen?|foresees?|reckon(?:s|ed|ing)?|deeds?|anew|afresh|by lot"
    r"|nobody knows|how-?manieth|in vain|as yet|once more|left out|given up|gives? up"
    r"|heal(?:s|ed|ing)?|seams?|skim(?:s|med|ming)?|put away|lets? go|takes in"
    r"|is said of|seldom|whence|wherefore|thereby|thereof|whereof"
    r"|fewest|with room left|yet to be|otherwise as|each by itself"
    r"|what (?:is|was) (?:read|known|meant) of|as far as not"
)
"""Words that only we used, or used in a sense of our own. The field has words for all of them."""
OWN_SENSES = (
    r"shel(?:f|ves)|so many|begun|told|besides|embedded (?:pair|target|draft)"
    r"|full reading|lower keep to|repeating itself|support sparse reading|whose words the answer"
)
"""Plain words that the app and its documents used in a sense of their own, and second names."""
OTHER_KEY_HINTS = re.compile(
    r"\^S (?!(?:shows )?what was read)[a-z]|\^T (?!(?:read )?in full|\{)[a-z]"
    r"|\^R (?!(?:reads? (?:it )?|asks again and reads )?in full)[a-z]"
)
"""A key and another name than its own: "what was read", and "read in full" or "in full"."""
OTHER_KEYS = Path("app/ui/conversations")
"""There Ctrl+R and Ctrl+T rename and pin."""


def forbidden(*patterns: str) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{'|'.join(patterns)})\b", re.I)


@table(
    "folders, words, at_least",
    [
        (("app", "docs", "README.md"), forbidden(PRIVATE_WORDS, OWN_SENSES), 200),
        (("tests",), forbidden(PRIVATE_WORDS), 200),
    ],
)
def test_texts_use_the_words_of_the_field(
    folders: tuple[str, ...], words: re.Pattern[str], at_least: int
) -> None:
    searched = [
        (path, text)
        for path, text in texts()
        if path.parts[0] in folders
        and path.suffix in (".py", ".md", ".tcss")
        and path != Path("tests/test_house.py")
    ]
    assert len(searched) > at_least
    found = [f"{p}: {hit[0]}" for p, text in searched for hit in words.finditer(text)]
    assert found == []


def test_key_hints_use_one_name_for_one_thing() -> None:
    searched = [
        (path, text)
        for path, text in texts()
        if path.parts[0] in ("app", "docs", "README.md")
        and path.suffix in (".py", ".md")
        and OTHER_KEYS not in path.parents
    ]
    assert len(searched) > 200
    found = [f"{p}: {hit[0]}" for p, text in searched for hit in OTHER_KEY_HINTS.finditer(text)]
    assert found == []


def test_the_patterns_find_what_they_forbid() -> None:
    for hint in ("^S sources", "^R read everything", "^R again, in full", "^T full"):
        assert OTHER_KEY_HINTS.search(hint)
    for hint in ("^S what was read", "^R reads it in full", "^R in full", "^T read in full"):
        assert not OTHER_KEY_HINTS.search(hint)
    assert forbidden(PRIVATE_WORDS).search("What is foretold")
    slash = "/"
    assert REGISTRY.search("see files.pythonhosted" + ".org")
    assert MACHINE_PATH.search(f"'{slash}root{slash}x'")
    assert MACHINE_PATH.search(f"in {slash}Users{slash}me")
    assert not MACHINE_PATH.search(f"at ~{slash}work{slash}x and models{slash}root{slash}x")


def test_the_lock_holds_versions_and_hashes_and_nothing_else() -> None:
    assert "://" not in LOCK
    for line in LOCK.splitlines():
        assert re.fullmatch(
            r"#.*|[a-z0-9-]+==\S+( ; .+)? \\|    --hash=sha256:[0-9a-f]{64}( \\)?", line
        ), line


def test_every_dependency_is_locked_at_a_version_it_allows() -> None:
    locked: dict[str, list[str]] = {}
    for name, version in re.findall(r"^([a-z0-9-]+)==(\S+)", LOCK, re.M):
        locked.setdefault(name, []).append(version)
    extras = PROJECT["optional-dependencies"]
    for line in [*PROJECT["dependencies"], *extras["dev"], *extras["cuda"]]:
        requirement = Requirement(line)
        versions = locked.get(canonicalize_name(requirement.name), [])
        assert versions, f"{requirement.name} is not in requirements.lock"
        assert all(requirement.specifier.contains(each) for each in versions), line


def test_rooms_that_know_no_mlx_do_not_load_it() -> None:
    rooms = ("app.ui", "app.protocol.engine", "app.models.cache", "app.models.pairs")
    rooms += ("app.ingest.reader", "app.store.store", "app.settings.file")
    code = (
        f"import importlib, sys\nfor room in {rooms}:\n    importlib.import_module(room)\n"
        "    assert not {'mlx', 'mlx.core'} & sys.modules.keys(), room\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_no_command_imports_mlx_before_openblas_is_loaded() -> None:
    """OpenBLAS has no effect on an MLX that is there already: models would be many times slower."""
    code = (
        "import importlib, pkgutil, sys, app.cli, app.engine.engine\n"
        "for each in pkgutil.walk_packages(app.cli.__path__, 'app.cli.'):\n"
        "    importlib.import_module(each.name)\n"
        "    assert 'mlx.core' not in sys.modules, each.name\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_scripts_outside_the_app_import_what_is_there() -> None:
    """Recipes run rarely and for hours, so nobody would notice a module that has moved."""
    missing = []
    for path, text in texts():
        if path.suffix != ".py" or path.parts[0] not in ("assets", "packaging"):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("app."):
                module = ROOT / str(node.module).replace(".", "/")
                if not module.is_dir() and not module.with_suffix(".py").exists():
                    missing.append(f"{path}:{node.lineno}: {node.module}")
    assert missing == []


# ---------------------------------------------------------------------------- codes, not sentences

SAID = frozenset({"problem", "message", "reason", "advice", "sentence", "failure"})
"""Names of what holds a sentence for the user."""
ASKED_OF_TEXTS = frozenset({"startswith", "endswith", "find", "index", "count", "partition"})
WORDING = Path("app/chat/wording.py")
"""Alone turns codes into sentences."""


def english(node: ast.AST | None, constants: frozenset[str] = frozenset()) -> bool:
    """Whether an expression is, or holds, a text of several words, or a constant that does."""
    match node:
        case ast.Constant(value=str(text)):
            return re.search(r"[a-z]{2} [a-z]", text, re.I) is not None
        case ast.JoinedStr(values=parts) | ast.Tuple(elts=parts) | ast.List(elts=parts):
            return any(english(part, constants) for part in parts)
        case ast.Set(elts=parts):
            return any(english(part, constants) for part in parts)
        case ast.Call(args=[*parts]) if parts and not isinstance(node.func, ast.Attribute):
            return any(english(part, constants) for part in parts)
        case ast.Subscript(value=value) | ast.Starred(value=value):
            return english(value, constants)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in constants
        case _:
            return False


def is_said(node: ast.AST | None) -> bool:
    """Whether an expression is a sentence for the user: named like one, or an error's text."""
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name in SAID
        case ast.Call(func=ast.Name(id="str"), args=[ast.Name(id=name) | ast.Attribute(attr=name)]):
            return re.search(r"err|exc|fail|raised|problem|lost", name) is not None
        case ast.Call(func=ast.Attribute(value=value)) | ast.Subscript(value=value):
            return is_said(value)  # `.lower()`, and a part of it
        case _:
            return False


def english_constants(trees: Iterable[ast.Module]) -> frozenset[str]:
    """Names in capitals that any module gives to a text of several words."""
    return frozenset(
        target.id
        for tree in trees
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and english(node.value)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name) and target.id.isupper()
    )


def branches_on_english(tree: ast.AST, constants: frozenset[str] = frozenset()) -> list[int]:
    """The lines in which what is done depends on the wording of a sentence."""
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Compare(left=left, comparators=others):
                sides = [left, *others]
                hit = any(map(is_said, sides)) and any(english(s, constants) for s in sides)
            case ast.Call(func=ast.Attribute(value=value, attr=name), args=arguments):
                asks = name in ASKED_OF_TEXTS and is_said(value)
                searches = isinstance(value, ast.Name) and value.id == "re"
                searches = searches and any(map(is_said, arguments))
                hit = (asks or searches) and any(english(a, constants) for a in arguments)
            case ast.MatchClass(kwd_attrs=names, kwd_patterns=patterns):
                hit = any(
                    name in SAID and any(english(each) for each in ast.walk(pattern))
                    for name, pattern in zip(names, patterns, strict=True)
                )
            case ast.Match(subject=subject, cases=cases):
                patterns = [each for case in cases for each in ast.walk(case.pattern)]
                hit = is_said(subject) and any(english(each, constants) for each in patterns)
            case _:
                hit = False
        if hit:
            found.append(node.lineno)
    return found


def test_no_code_branches_on_a_sentence() -> None:
    """Failures and reasons are codes with data (`app/protocol/reasons.py`)."""
    paths = [p for p in project_files() if p.parts[0] == "app" and p.suffix == ".py"]
    trees = {p: ast.parse((ROOT / p).read_text("utf-8")) for p in paths if p != WORDING}
    assert len(trees) > 200
    constants = english_constants(trees.values())
    found = [f"{p}:{n}" for p, tree in trees.items() for n in branches_on_english(tree, constants)]
    assert found == []


@table(
    "code",
    [
        'failure.problem == "The machine ran out of memory"',
        'self.lost.message.startswith(("No model is loaded", "Memory was nearly used up"))',
        '"cannot be read" in str(error)',
        '"cannot be read" in str(error).lower()',
        'problem.partition(": try again")[0]',
        'file.reason != "your choice"',
        "failed.problem.startswith(OURS) or failed.problem == STOPPED[0]",
        're.search("ran out of memory", event.message)',
        'match event:\n case Failed(problem="No model is loaded"): pass',
        'match failure.problem:\n case "No model is loaded": pass',
    ],
)
def test_that_test_finds_a_branch_on_a_sentence(code: str) -> None:
    constants = english_constants([ast.parse('OURS = ("Something went wrong",)')])
    assert branches_on_english(ast.parse(code), constants)


@table(
    "code",
    [
        "failure.kind is FailureKind.OUT_OF_MEMORY",
        'part.reason == "pinned"',
        'title == "No question yet"',
        'raise UserError(f"{problem} was not found", "look for it")',
        "answer.text.startswith(prefix)",
    ],
)
def test_it_leaves_other_code_alone(code: str) -> None:
    assert not branches_on_english(ast.parse(code))
