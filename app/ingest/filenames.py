"""Classifies files by name (private, README), and makes names printable."""

from __future__ import annotations

import fnmatch
import os
import re

_README = re.compile(r"read[-_]?me(\.\w+)?", re.IGNORECASE)
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")

_PRIVATE_FOLDERS = (
    *(".ssh", ".gnupg", ".aws", ".azure", ".gcloud", "gcloud", ".kube", ".docker", ".pki"),
    *(".password-store", "keyrings", "keychains", ".mozilla", ".thunderbird", ".bitcoin"),
    *(".ethereum", ".electrum"),
)


def matching(patterns: str) -> re.Pattern[str]:
    """An expression for names that match one of the patterns, which are separated by spaces."""
    return re.compile("|".join(map(fnmatch.translate, patterns.split())))


_PRIVATE_FILES = matching(
    """
    .env .env.* *.env .envrc .netrc _netrc .npmrc .pypirc .pgpass .my.cnf .htpasswd
    .git-credentials .dockercfg .vault-token .s3cfg .boto *.pem *.key *.p12 *.pfx *.p8 *.jks
    *.keystore *.kdb *.kdbx *.ppk *.agekey *.gpg *.ovpn *.mobileprovision *.keychain* *.tfstate
    *.tfstate.* *.tfvars id_rsa id_dsa id_ecdsa id_ecdsa_sk id_ed25519 id_ed25519_sk credentials
    credentials.* client_secret*.json service[-_]account*.json secrets secret.* secrets.*
    *[-_]secret.* *[-_]secrets.* kubeconfig .*_history token token.* *[-_]token *[-_]token.*
    *[-_]tokens.txt api[-_]key* apikey* password passwords password.* passwords.* *[-_]password.*
    *[-_]passwords.* passwd shadow wallet wallet.* *.wallet *[-_]wallet.* logins.json key[34].db
    login?data cookies cookies.sqlite cookies.txt auth.json mnemonic* seed[-_]phrase*
    recovery[-_]codes* bitwarden* lastpass* hosts.yml hosts.yaml *credentials.json *.jwk
    *.kubeconfig .databrickscfg .terraformrc .yarnrc .yarnrc.yml .curlrc .wgetrc .msmtprc
    .fetchmailrc rclone.conf .rclone.conf .pg_service.conf .mylogin.cnf .vault_pass*
    *[-_]adminsdk[-_]*.json local.settings.json access[-_]tokens.* accesstokens.json
    worker-key host-keys.json
    """
)
"""The last two are specchat's own. Its `serve-token` matches the patterns for tokens."""
# Sample files, and source files, do not contain secrets.
_OPEN_FILES = matching(
    """
    *.example *.sample *.template *.dist example.* *.example.* *.cc *.cpp *.cs *.css *.hpp *.html
    *.kt *.php *.swift *.tsx *.py *.rs *.go *.js *.ts *.rb *.java *.c *.h *.md *.rst
    """
)
_PROSE = matching(
    "*.txt *.text *.md *.markdown *.mkd *.rst *.adoc *.asciidoc *.org *.textile *.csv *.tsv *.srt"
    " *.vtt"
)
_PRIVATE_KEY = re.compile(rb"\s*(-----BEGIN [A-Z0-9 ]*PRIVATE KEY( BLOCK)?-----|PuTTY-User-Key-)")


def printable(path: str) -> str:
    """Escape control characters, and bytes that are not UTF-8, so that a path stays on one line."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return _CONTROL.sub(lambda hit: hit[0].encode("unicode_escape").decode(), text)


def is_unicode(path: str) -> bool:
    """Whether a path consists of characters. Others have bytes that are not UTF-8."""
    return not any("\ud800" <= character <= "\udfff" for character in path)


def reading_order(name: str) -> tuple[bool, str]:
    """Sort key of a folder's entries: README files first, then by name."""
    return _README.fullmatch(name) is None, name


def is_private_folder(name: str) -> bool:
    return name.lower() in _PRIVATE_FOLDERS


def is_private(name: str) -> bool:
    """Whether a file of this name may contain passwords or keys."""
    name = name.lower()
    return _PRIVATE_FILES.match(name) is not None and _OPEN_FILES.match(name) is None


def is_keynote(name: str) -> bool:
    """Whether a file of this name is a presentation of Keynote, unless it has a key."""
    return name.lower().endswith(".key")


def is_prose(name: str) -> bool:
    """Whether a file of this name is written for people: no source code or configuration."""
    name = os.path.basename(name)
    is_named = "." in name[1:]
    return _PROSE.match(name.lower()) is not None if is_named else not name or name.isupper()


def is_private_key(data: bytes) -> bool:
    """Whether a file that begins with `data` is a private key."""
    return _PRIVATE_KEY.match(data) is not None
