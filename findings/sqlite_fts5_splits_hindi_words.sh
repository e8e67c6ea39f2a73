#!/usr/bin/env bash
# Question: Does SQLite's FTS5, with its default tokenizer unicode61, find a Hindi word and not
#   its neighbours?
# One would guess: yes: unicode61 knows Unicode, so a word of letters and vowel signs is one
#   token.
# What happens: vowel signs count as separators, so words fall into single consonants. 'किताब'
#   (book) is stored as three tokens, and the same three stand for 'कातिब' (scribe): a search
#   for either finds both.
# Versions: apsw 3.54.1.0; Python 3.11
# Why it matters: search in Hindi, Bengali or Tamil returns wrong words, and ranks by letters.
# Output seen (28 November 2026):
#   SQLite 3.54.1 (apsw 3.54.1.0)
#   terms in the index: ['a', 'book', 'क', 'त', 'ब']
#   search for किताब finds ['किताब', 'कातिब']
#   with categories 'L* N* Co M*': ['किताब']
set -euo pipefail

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
python3 -m venv "$tmp/venv"
"$tmp/venv/bin/pip" install -q --disable-pip-version-check --no-compile \
    'apsw==3.54.1.0'

cd "$tmp"
"$tmp/venv/bin/python" - <<'PY'
import apsw

print("SQLite", apsw.sqlite_lib_version(), "(apsw", apsw.apsw_version() + ")")
db = apsw.Connection(":memory:")
db.execute("create virtual table notes using fts5(text)")
db.execute("create virtual table terms using fts5vocab(notes, 'row')")
book, scribe = "किताब", "कातिब"
db.execute("insert into notes values (?), (?), (?)", (book, scribe, "a book"))
terms = [row[0] for row in db.execute("select term from terms")]
print("terms in the index:", terms)
found = [row[0] for row in db.execute("select text from notes where notes match ?", (f'"{book}"',))]
print("search for", book, "finds", found)
db.execute("create virtual table better using fts5(text, tokenize = \"unicode61 categories 'L* N* Co M*'\")")
db.execute("insert into better values (?), (?)", (book, scribe))
better = [row[0] for row in db.execute("select text from better where better match ?", (f'"{book}"',))]
print("with categories 'L* N* Co M*':", better)
if found != [book, scribe] or better != [book]:
    raise SystemExit("Changed: unicode61 keeps vowel signs inside words now.")
PY
