"""The guard of the tests themselves notices what a test changes of its machine."""

import os
from pathlib import Path

from tests import surroundings


def test_what_is_new_or_gone_or_replaced_is_named(tmp_path: Path) -> None:
    for name in ("gone", "kept", "replaced"):
        (tmp_path / name).touch()
    before = surroundings.seen(tmp_path)
    (tmp_path / "gone").unlink()
    (tmp_path / "new").touch()
    (tmp_path / "replaced").unlink()
    os.mkfifo(tmp_path / "replaced")
    (tmp_path / "kept").write_text("more")
    found = surroundings.changes(before, surroundings.seen(tmp_path))
    assert found == [str(tmp_path / name) for name in ("gone", "new", "replaced")]


def test_a_file_in_place_of_a_device_is_named() -> None:
    null = surroundings.seen(Path("/dev"))["/dev/null"]
    assert surroundings.changes({"/dev/null": null}, {"/dev/null": (0o100000, 0)}) == ["/dev/null"]
    assert surroundings.changes({}, {"/dev/loop9": null}) == []
