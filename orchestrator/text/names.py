"""Names and labels of nodes, and the cloud's rules for both. Pure.

A node's name holds its owner and its lease, and is never used twice, so it is the idempotency key of its create call; the
labels let a machine without a ledger find the node. The `..._problem` functions return None if the value is valid, else the
end of a sentence that begins with the value. They allow only characters that are harmless in a URL path, in a shell line
and as an argument.
"""

import re
import unicodedata
from collections.abc import Mapping

PREFIX = "tpujob"
# Label keys. Times are unix seconds of the server's clock.
LEASE_ID, CLAIMED_UNTIL, DEADLINE = "tpujob-lease-id", "tpujob-claimed-until", "tpujob-deadline"
OWNER, NAME, MODE, HELD_FOR = "tpujob-owner", "tpujob-name", "tpujob-mode", "tpujob-held-for"
RUN = "tpujob-run"  # the id of the run, of a node and of the objects on a cluster
RUN_BITS = 50
MAX_NODE_CHARS = 61
MAX_JOB_NAME_CHARS = 40

# Crockford's base32 in lower case: no i, l, o, u, so that an id can be read out and typed.
_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"
_BITS_PER_DIGIT = 5

_RULE = "letters a-z, digits and `-`, a letter first and no `-` last"
_NODE = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
_OWNER = re.compile(r"[a-z0-9]([a-z0-9-]{0,18}[a-z0-9])?")
MAX_OWNER_CHARS = 20
# Accounts of machines, which many people have: such a user is told from others by the name of the machine.
_SERVICE_ACCOUNT = ".gserviceaccount.com"  # the end of an account that is no person
_NO_PERSON = frozenset({
    *("root", "admin", "administrator", "ubuntu", "debian", "user", "app", "ec2-user", "azureuser", "pi", "nobody"),
    *("runner", "jenkins", "gitlab-runner", "ci", "jupyter", "jovyan", "colab", "vscode", "codespace", "workspace"),
})  # fmt: skip
_RUN = re.compile(rf"[{_DIGITS}]{{10}}")
_PROJECT = re.compile(r"([a-z0-9.-]{1,100}\.[a-z]{2,}:)?[a-z][a-z0-9-]{4,28}[a-z0-9]")
_ZONE = re.compile(r"[a-z]+-[a-z]+[0-9]+-[a-z]")
_REGION = re.compile(r"[a-z]+-[a-z]+[0-9]+")

PAGE = "report.html"  # of a run, in its directory; its mark


def new_run_id(random_bits: int) -> str:
    """Return ten characters for 50 random bits, which the caller draws (`secrets.randbits(RUN_BITS)`)."""
    return _base32(random_bits, RUN_BITS)


def is_run_id(text: str) -> bool:
    """Return whether the text has the form of `new_run_id`."""
    return _RUN.fullmatch(text) is not None


def owner_name(user: str, machine: str, account: str | None = None) -> str:
    """Return the owner of what this user makes: the name before the @ of a person's account, else the user's.

    A user that many machines have, such as root, gets the name of the machine, too: `root-lab-7`.
    """
    is_person = account is not None and not account.endswith(_SERVICE_ACCOUNT)
    name = _owner_part(account.partition("@")[0]) if account and is_person else ""
    name = name or _owner_part(user)
    if not name or name in _NO_PERSON:
        name = _owner_part(f"{name or 'user'}-{machine.partition('.')[0]}") or "user"
    return name


def owner_problem(text: str) -> str | None:
    """Return what is wrong with the name of an owner."""
    if len(text) <= MAX_OWNER_CHARS and _OWNER.fullmatch(text):
        return None
    return f"is not a name for an owner: up to {MAX_OWNER_CHARS} letters a-z, digits and `-`, such as alice"


def _owner_part(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", _plain(text)).strip("-")[:MAX_OWNER_CHARS].rstrip("-")


def owner_id(user: str, machine: str) -> str:
    """Return the owner as tpujob 0.1 wrote it before 2026-12: six characters for one user on one machine."""
    import hashlib  # 3 ms, needed only to create something

    digest = hashlib.sha256(f"{user}\0{machine}".encode("utf-8", "surrogateescape")).digest()
    return _base32(int.from_bytes(digest[:4], "big") >> 2, 30)


def node_name(owner: str, run: str) -> str:
    """Return `tpujob-<owner>-<run>`."""
    assert _OWNER.fullmatch(owner) and _RUN.fullmatch(run), "owner and run come from owner_name and new_run_id"
    return f"{PREFIX}-{owner}-{run}"


def labels(
    *,
    lease_id: str,
    owner: str,
    claimed_until: float,
    deadline: float,
    name: str,
    mode: str,
    run: str | None = None,
    held_for: str | None = None,
) -> dict[str, str]:
    """Return the labels of a node from its create call on. Times are unix seconds; `name` is the job's, for display."""
    said = {RUN: run, HELD_FOR: held_for}
    return {
        PREFIX: "1",
        LEASE_ID: lease_id,
        OWNER: owner,
        CLAIMED_UNTIL: str(int(claimed_until)),
        DEADLINE: str(int(deadline)),
        NAME: to_label_value(name),
        MODE: to_label_value(mode),
        **{key: value for key, value in said.items() if value is not None},
    }


def is_ours(node: str, node_labels: Mapping[str, str]) -> bool:
    """Return whether tpujob created the node: it needs the name's prefix and the label; either alone may be chance."""
    return node.startswith(f"{PREFIX}-") and node_labels.get("tpujob") == "1"


def ownership_doubt(node: str, node_labels: Mapping[str, str]) -> str | None:
    """Return which of the two marks of `is_ours` is missing, if exactly one is; else None."""
    if is_ours(node, node_labels):
        return None
    if node.startswith(f"{PREFIX}-"):
        return "it has a name like ours, but not the label tpujob=1"
    if node_labels.get("tpujob") == "1":
        return "it has the label tpujob=1, but not a name like ours"
    return None


def for_display(text: str) -> str:
    """Return an untrusted value, safe and short enough for a message on a terminal."""
    plain = "".join(char if char.isprintable() else "?" for char in text)
    return plain if len(plain) <= 40 else f"{plain[:39]}…"


def for_path(text: str) -> str:
    """Return a path that another machine tells, for display only: without characters that a terminal would obey."""
    return "".join(char if char.isprintable() else "?" for char in text)


def to_label_value(text: str) -> str:
    """Return the nearest text that is valid as a label value."""
    return re.sub(r"[^a-z0-9_-]+", "-", _plain(text))[:63]


def to_job_name(text: str) -> str:
    """Return a job name for a file's stem: `MNIST (eight cores)` → `mnist-eight-cores`."""
    name = re.sub(r"[^a-z0-9]+", "-", _plain(text)).lstrip("-0123456789")[:MAX_JOB_NAME_CHARS].rstrip("-")
    return name or "job"


def job_name_problem(text: str) -> str | None:
    """Return what is wrong with a job's name."""
    if len(text) > MAX_JOB_NAME_CHARS:
        return f"has {len(text)} characters; at most {MAX_JOB_NAME_CHARS} are allowed"
    return None if _NODE.fullmatch(text) else f"is not a valid name: {_RULE}"


def node_problem(text: str) -> str | None:
    """Return what is wrong with a node's name."""
    if len(text) > MAX_NODE_CHARS:
        return f"has {len(text)} characters; a node name has at most {MAX_NODE_CHARS}"
    return None if _NODE.fullmatch(text) else f"is not a node name: {_RULE}"


def project_problem(text: str) -> str | None:
    """Return what is wrong with a project id."""
    if _PROJECT.fullmatch(text):
        return None
    return "is not a project id: 6 to 30 lower-case letters, digits and `-`, a letter first, such as my-project-123"


def zone_problem(text: str) -> str | None:
    """Return what is wrong with the form of a zone's name."""
    return None if _ZONE.fullmatch(text) else "is not a zone; zones look like us-central1-a"


def region_problem(text: str) -> str | None:
    """Return what is wrong with the form of a region's name."""
    return None if _REGION.fullmatch(text) else "is not a region; regions look like us-central1"


def _plain(text: str) -> str:
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()


def _base32(number: int, bits: int) -> str:
    assert 0 <= number < 1 << bits, f"{bits} bits are needed"
    return "".join(_DIGITS[number >> shift & 31] for shift in range(bits - _BITS_PER_DIGIT, -1, -_BITS_PER_DIGIT))
