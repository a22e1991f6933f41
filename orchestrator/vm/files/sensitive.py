"""Which files look like secrets: by their name, or by what is in them. A shipped secret stays on disks and in job logs.

Names and contents are those that git hosts, cloud tools and secret scanners agree on. A false alarm costs a line in
.tpujobignore, so program sources are judged by their name alone, and what is only an example of an environment file is none.
`hosts.shipping.tree` asks before it ships a file, `pack` before it sends one that no pattern names.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase, translate

LOOK_BYTES = 64 << 10  # a larger file is no key

ENVIRONMENT, SSH_KEY, LOGIN, KEYS = "an environment file", "a private SSH key", "login data", "a key store"
BY_NAME = {
    **dict.fromkeys((".env", ".env.*", "*.env"), ENVIRONMENT),
    **dict.fromkeys(("id_rsa", "id_dsa", "id_ecdsa", "id_ecdsa_sk", "id_ed25519", "id_ed25519_sk", "*.ppk"), SSH_KEY),
    **dict.fromkeys((".netrc", "_netrc", ".git-credentials", ".pgpass", ".pypirc", ".htpasswd", ".vault-token"), LOGIN),
    **dict.fromkeys(("*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx"), KEYS),
    **dict.fromkeys(("kubeconfig", "*.kubeconfig"), "a kubeconfig"),
    **dict.fromkeys(("credentials.json", "application_default_credentials.json", "client_secret*.json"), LOGIN),
    **dict.fromkeys(("kaggle.json", "secrets.toml", "secrets.yaml", "secrets.yml", "secrets.json"), LOGIN),
}
BY_PATH = {
    ".aws/credentials": LOGIN,
    ".kube/config": "a kubeconfig",
    ".docker/config.json": LOGIN,
    ".huggingface/token": LOGIN,
}
EXAMPLES = ("*.example", "*.sample", "*.template", "*.dist", "example.env", "sample.env", "template.env")

NAMED, EXAMPLE = (re.compile("|".join(map(translate, globs))) for globs in (BY_NAME, EXAMPLES))
TAILS = tuple(f"/{tail}" for tail in BY_PATH)

PRIVATE_KEY = re.compile(rb"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----")
BY_CONTENT = (
    (PRIVATE_KEY, "a private key"),
    (re.compile(rb'"type"\s*:\s*"(?:service_account|authorized_user|external_account)"'), "a Google credential"),
    (re.compile(rb"^\s*client-key-data\s*:", re.MULTILINE), "a kubeconfig"),
    (re.compile(rb"_authToken\s*=|^_password\s*=", re.MULTILINE), LOGIN),
)
# Of these the content is looked at.
SUFFIXES = frozenset(
    ("", ".pem", ".key", ".json", ".yaml", ".yml", ".conf", ".cfg", ".ini", ".txt", ".crt", ".cer", ".asc")
)


def secret_by_name(path: str) -> str | None:
    """Return what the file of this name seems to be; None: nothing that must not be shipped."""
    name = path.rpartition("/")[2]
    if f"/{path}".endswith(TAILS):
        return next(what for tail, what in BY_PATH.items() if f"/{path}".endswith(f"/{tail}"))
    if NAMED.fullmatch(name) is None or EXAMPLE.fullmatch(name):
        return None
    return next(what for glob, what in BY_NAME.items() if fnmatchcase(name, glob))


def may_hold_secret(path: str, size_bytes: int) -> bool:
    """Return whether the content decides: `secret_by_content` has to look."""
    name = path.rpartition("/")[2]
    stem, dot, suffix = name.rpartition(".")
    return 0 < size_bytes <= LOOK_BYTES and (
        name == ".npmrc" or (f".{suffix.lower()}" if dot and stem else "") in SUFFIXES
    )


def secret_by_content(content: bytes) -> str | None:
    """Return what the content seems to be; None: nothing that must not be shipped."""
    return next((what for pattern, what in BY_CONTENT if pattern.search(content)), None)
