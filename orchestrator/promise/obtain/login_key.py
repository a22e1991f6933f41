"""The login key of a lease: its own, created on this machine before the create call, and deleted with the lease's directory."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import ConfigError
from orchestrator.system import private_files, whole_file
from orchestrator.system.lazy import Later

if TYPE_CHECKING:
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ed25519
else:
    form = Later("cryptography.hazmat.primitives.serialization")
    ed25519 = Later("cryptography.hazmat.primitives.asymmetric.ed25519")

COMMENT = "tpujob"


@dataclass(frozen=True, slots=True)
class KeyPair:
    private_path: Path
    public_line: str  # "ssh-ed25519 AAAA… tpujob"


def create_key(directory: Path) -> KeyPair:
    """Return a new ed25519 key in `directory`, or the one that an earlier attempt created there. Raises ConfigError."""
    path = directory / "id_ed25519"
    if not path.exists():
        made = ed25519.Ed25519PrivateKey.generate()
        private_files.make_directory(directory)
        text = made.private_bytes(form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption())
        whole_file.replace(path, text)
    if path.stat().st_mode & 0o077:
        raise ConfigError(f"{path} can be read by others", hint=f"chmod 600 {path}")
    try:
        key = form.load_ssh_private_key(path.read_bytes(), password=None)
    except ValueError as error:
        raise ConfigError(f"{path} is not an SSH key: {error}") from error
    public = key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH).decode()
    return KeyPair(path, f"{public} {COMMENT}")


def ssh_keys_metadata(user: str, public_line: str) -> str:
    """Return the value of the metadata key `ssh-keys` that lets `user` log in with this key. Raises ConfigError."""
    if not re.fullmatch(r"[a-z_][a-z0-9_-]{0,31}", user):
        raise ConfigError(f"{user!r} is not a usable login name", hint="letters a-z, digits, - and _ are, 32 at most")
    return f"{user}:{public_line}"
