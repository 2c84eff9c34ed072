"""A change is seen by content, also through the symlinks of a ConfigMap volume."""

import gzip
import hashlib
import os
from pathlib import Path

import pytest

from config.parts import fingerprint
from config.problems import MAX_FILE_BYTES


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


WHOLE = b"a: 1\nb: 2\n"
PARTS = {
    "kquota.yaml": f"# kquota.io/parts: 2 sha256:{hashlib.sha256(WHOLE).hexdigest()}\na: 1\n",
    "kquota.yaml.2": "b: 2\n",
}


def test_parts_are_one_file_when_they_are_of_one_version(tmp_path: Path) -> None:
    path = tmp_path / "kquota.yaml"
    publish(tmp_path, "1", PARTS)
    assert fingerprint(path).data == WHOLE
    publish(tmp_path, "2", PARTS | {"kquota.yaml.2": "b: 3\n"})
    found = fingerprint(path)
    assert found.digest is None
    assert "its 2 parts are not of one version: expected SHA-256" in str(found.error)
    publish(tmp_path, "3", {"kquota.yaml": PARTS["kquota.yaml"]})
    assert fingerprint(path).error == "part 2 of 2, kquota.yaml.2: No such file or directory"
    publish(tmp_path, "4", PARTS)
    assert fingerprint(path).data == WHOLE


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (gzip.compress(WHOLE), None),
        (gzip.compress(WHOLE)[:-3], "it is a gzip file without its end"),
        (b"\x1f\x8b not gzip", "not a valid gzip file"),
        (gzip.compress(bytes(MAX_FILE_BYTES + 1)), f"it expands to more than {MAX_FILE_BYTES} bytes"),
    ],
    ids=["whole", "cut", "other", "large"],
)
def test_compressed_files_are_expanded_within_the_bound(data: bytes, error: str | None, tmp_path: Path) -> None:
    (path := tmp_path / "kquota.yaml").write_bytes(data)
    found = fingerprint(path)
    assert found.data == (WHOLE if error is None else None)
    assert (found.error is None) if error is None else str(found.error).startswith(error)
