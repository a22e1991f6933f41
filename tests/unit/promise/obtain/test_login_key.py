"""The SSH key of a lease: made once, for this user only, and refused where it is not that."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from orchestrator.errors import ConfigError, QuotaError
from orchestrator.promise.obtain.login_key import create_key, ssh_keys_metadata
from orchestrator.promise.obtain.refusals import quota_key
from tests.fakes.leases import lease_and_request


def test_a_key_is_made_once_for_this_user_only(tmp_path: Path) -> None:
    made = create_key(tmp_path / "keys")
    assert stat.S_IMODE(made.private_path.stat().st_mode) == 0o600
    assert stat.S_IMODE(made.private_path.parent.stat().st_mode) == 0o700
    assert made.public_line.startswith("ssh-ed25519 AAAA") and create_key(tmp_path / "keys") == made


@pytest.mark.parametrize(("mode", "text", "words"), [
    (0o644, None, "can be read by others"), (0o601, None, "can be read by others"), (0o600, "no key", "is not an SSH key"),
])  # fmt: skip
def test_another_file_in_its_place_is_refused(tmp_path: Path, mode: int, text: str | None, words: str) -> None:
    path = create_key(tmp_path).private_path
    if text is not None:
        path.write_text(text)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=words):
        create_key(tmp_path)


def test_the_metadata_admits_one_user_with_the_key() -> None:
    assert ssh_keys_metadata("ada_2", "ssh-ed25519 AAAA tpujob") == "ada_2:ssh-ed25519 AAAA tpujob"
    for name in ("", "Ada", "a:b", "2a", "a" * 33, "a\n"):
        with pytest.raises(ConfigError, match="not a usable login name"):
            ssh_keys_metadata(name, "ssh-ed25519 AAAA tpujob")


def test_a_quota_is_one_of_a_family_of_accelerators() -> None:
    request = lease_and_request().request
    error = QuotaError("Quota limit has been exceeded")
    assert "v5litepod" in quota_key(request, error) and "8" not in quota_key(request, error)
