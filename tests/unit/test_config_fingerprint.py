"""A configuration in parts or compressed by gzip: the whole content, or why there is none."""

import gzip
import hashlib
from pathlib import Path

import pytest

from config.parts import fingerprint
from config.problems import MAX_FILE_BYTES

WHOLE = b"a: 1\nb: 2\n"
FIRST = f"# kquota.io/parts: 2 sha256:{hashlib.sha256(WHOLE).hexdigest()}\na: 1\n".encode()
LARGE = gzip.compress(bytes(MAX_FILE_BYTES + 1))


@pytest.mark.parametrize(
    ("first", "second", "error"),
    [
        pytest.param(FIRST, b"b: 2\n", None, id="parts"),
        pytest.param(FIRST, b"b: 3\n", "its 2 parts are not of one version: expected SHA-256", id="two versions"),
        pytest.param(FIRST, None, "part 2 of 2, kquota.yaml.2: No such file or directory", id="part missing"),
        pytest.param(gzip.compress(WHOLE), None, None, id="gzip"),
        pytest.param(gzip.compress(WHOLE)[:-3], None, "it is a gzip file without its end", id="gzip cut"),
        pytest.param(b"\x1f\x8b not gzip", None, "not a valid gzip file", id="not gzip"),
        pytest.param(LARGE, None, f"it expands to more than {MAX_FILE_BYTES} bytes", id="gzip too large"),
    ],
)
def test_file_is_whole_or_its_error_says_why(
    first: bytes, second: bytes | None, error: str | None, tmp_path: Path
) -> None:
    (path := tmp_path / "kquota.yaml").write_bytes(first)
    if second is not None:
        (tmp_path / "kquota.yaml.2").write_bytes(second)
    found = fingerprint(path)
    assert (found.data, found.digest is None) == ((WHOLE, False) if error is None else (None, True))
    assert found.error is None if error is None else str(found.error).startswith(error)
