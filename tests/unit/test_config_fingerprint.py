"""A change is seen by content, also through the symlinks of a ConfigMap volume."""

from __future__ import annotations

import os
from pathlib import Path

from config.fingerprint import fingerprint


def publish(volume: Path, generation: str, files: dict[str, str]) -> None:
    """What kubelet's atomic writer does: a new directory, then `..data` swapped to it by rename."""
    directory = volume / f"..{generation}"
    directory.mkdir()
    for name, text in files.items():
        (directory / name).write_text(text)
        link = volume / name
        if not link.is_symlink():
            link.symlink_to(Path("..data") / name)
    fresh = volume / "..data_tmp"
    fresh.symlink_to(directory.name)
    os.replace(fresh, volume / "..data")


def test_a_configmap_swap_is_a_change(tmp_path: Path) -> None:
    publish(tmp_path, "2025_01", {"kquota.yaml": "a: 1\n"})
    path = tmp_path / "kquota.yaml"
    before = fingerprint(path)
    assert before.data == b"a: 1\n"
    assert fingerprint(path) == before
    publish(tmp_path, "2025_02", {"kquota.yaml": "a: 2\n"})
    after = fingerprint(path)
    assert after.digest != before.digest
    assert after.data == b"a: 2\n"


def test_a_change_that_keeps_size_and_time_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "q.yaml"
    path.write_text("a: 1\n")
    before = fingerprint(path)
    stat = path.stat()
    path.write_text("a: 2\n")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert fingerprint(path).digest != before.digest


def test_a_missing_file_is_a_state_not_an_exception(tmp_path: Path) -> None:
    found = fingerprint(tmp_path / "none.yaml")
    assert (found.digest, found.data) == (None, None)
    assert found.error == "No such file or directory"
