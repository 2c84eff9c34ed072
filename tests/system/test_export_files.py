"""Usage records in files: what readers see, what a killed or a full sidecar leaves, what is deleted."""

import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from proxy.app.export.files import FileSink, complete
from proxy.app.export.worker import Batch
from quota import record
from tests.support.usage_rows import NAMES, build, from_line

HOUR = "date=2026-08-01/hour=12"


def sink(directory: Path, instance: str = "inst", **settings: Any) -> FileSink:
    known: dict[str, Any] = {"rotate_s": 300.0, "rotate_bytes": 1 << 30, "keep_bytes": None, "clock_s": lambda: 0.0}
    return FileSink(directory, instance, **(known | settings))


def line(sequence: int, **values: Any) -> bytes:
    known = {"instance": "inst", "sequence": sequence, "start_ms": 0, "end_ms": 1, "kquota_version": "1"}
    return record.to_line(build(known | {"user": "u", "client_id": "c"} | values))


def batch(first: int, count: int = 1, partition: str = HOUR, **values: Any) -> Batch:
    return Batch([line(first + index, **values) for index in range(count)], first, 1, partition)


def complete_files(directory: Path) -> list[Path]:
    return sorted(directory.rglob("usage-*.jsonl"))


def sequences(directory: Path) -> list[int]:
    """Of all records in complete files; fails on anything that is no record."""
    found = [one for path in complete_files(directory) for one in path.read_bytes().splitlines(keepends=True)]
    return [from_line(one)["sequence"] for one in found]


def visible(directory: Path) -> list[str]:
    """What plain readers see: no names that start with a dot or an underscore."""
    found = (path for path in directory.rglob("*") if path.is_file())
    return sorted(path.name for path in found if not path.name.startswith((".", "_")))


def test_a_file_is_seen_when_it_is_complete(tmp_path: Path) -> None:
    now_s = 0.0
    files = sink(tmp_path, clock_s=lambda: now_s)
    files.write(batch(1, 2))
    now_s = 299.0
    files.write(batch(3))
    assert visible(tmp_path) == []
    now_s = 300.0
    files.tick()
    assert visible(tmp_path) == ["usage-inst-000000000001.jsonl"]
    assert complete_files(tmp_path) == [tmp_path / HOUR / "usage-inst-000000000001.jsonl"]
    assert sequences(tmp_path) == [1, 2, 3]


def test_a_file_ends_with_its_hour_and_its_size_and_its_sidecar(tmp_path: Path) -> None:
    files = sink(tmp_path, rotate_bytes=len(line(1)) + 1)
    for first, hour, complete_then in ((1, 12, 0), (2, 13, 1), (3, 13, 1), (4, 13, 2)):
        files.write(batch(first, partition=f"date=2026-08-01/hour={hour}"))
        assert len(complete_files(tmp_path)) == complete_then
    files.close()
    found = [(path.parent.name, path.name[-8:-6]) for path in complete_files(tmp_path)]
    assert found == [("hour=12", "01"), ("hour=13", "02"), ("hour=13", "04")]
    assert sequences(tmp_path) == [1, 2, 3, 4]
    assert list(tmp_path.rglob(".*")) == []


def left_behind(directory: Path, data: bytes) -> Path:
    path = directory / HOUR / ".usage-old-000000000007.jsonl.open"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("cut", [1, 10, len(line(9)) - 1])
def test_next_sidecar_completes_files_of_a_killed_one(tmp_path: Path, cut: int) -> None:
    left_behind(tmp_path, line(7) + line(8) + line(9)[:cut])
    sink(tmp_path).tick()
    assert visible(tmp_path) == ["usage-old-000000000007.jsonl"]
    assert sequences(tmp_path) == [7, 8]
    assert list(tmp_path.rglob(".*")) == []


@pytest.mark.parametrize("data", [b"", b'{"half', b"x" * 200_000])
def test_removes_file_without_a_whole_line(tmp_path: Path, data: bytes) -> None:
    path = left_behind(tmp_path, data)
    sink(tmp_path).tick()
    assert not path.exists()
    assert visible(tmp_path) == []


def test_the_file_of_a_living_sidecar_is_left_alone(tmp_path: Path) -> None:
    alive = sink(tmp_path)
    alive.write(batch(1))
    (path,) = tmp_path.rglob(".*.open")
    assert complete(path) is None
    sink(tmp_path, "other").tick()
    assert path.exists()
    alive.write(batch(2))
    alive.close()
    assert sequences(tmp_path) == [1, 2]


@pytest.fixture
def small_disk() -> Iterator[Callable[[], None]]:
    """No file may be longer than 64 kB, as on a full disk: a part of a write is written. It is called to end that."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16 * 4096, before[1]))

    def end() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    yield end
    end()


def test_full_disk_leaves_no_half_line_and_resumes(small_disk: Callable[[], None], tmp_path: Path) -> None:
    files = sink(tmp_path)
    written: list[int] = []
    with pytest.raises(OSError, match="File too large"):  # noqa: PT012
        for first in range(1, 1000, 5):
            one = batch(first, 5)
            files.write(one)
            written += range(first, first + 5)
    assert len(one.lines) == 5, "all or nothing"
    assert written, "there was some room"
    (path,) = tmp_path.rglob(".*.open")
    assert [from_line(one)["sequence"] for one in path.read_bytes().splitlines()] == written
    small_disk()
    files.write(one)
    files.close()
    assert sequences(tmp_path) == [*written, *range(first, first + 5)]


def test_retries_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "usage").write_text("a file in the way")
    files = sink(tmp_path / "usage")
    with pytest.raises(OSError, match=r"(exists|directory).*usage"):
        files.write(batch(1))
    (tmp_path / "usage").unlink()
    files.write(batch(1))
    files.close()
    assert sequences(tmp_path) == [1]


def test_deleted_file_is_replaced(tmp_path: Path) -> None:
    files = sink(tmp_path)
    files.write(batch(1))
    (path,) = tmp_path.rglob(".*.open")
    path.unlink()
    files.write(batch(2))
    files.close()
    assert sequences(tmp_path) == [2]


def test_the_oldest_files_go_when_there_are_too_many_bytes(tmp_path: Path) -> None:
    files = sink(tmp_path, keep_bytes=len(line(1)) * 2, rotate_bytes=1)
    for first in range(1, 6):
        files.write(batch(first, partition=f"date=2026-08-0{first}/hour=00"))
    files.close()
    assert sequences(tmp_path) == [4, 5]
    assert files.deleted == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["date=2026-08-04", "date=2026-08-05"]


def test_duckdb_and_pandas_read_the_files_as_they_are(tmp_path: Path) -> None:
    import duckdb
    import pandas

    files = sink(tmp_path)
    files.write(batch(1, 2, produce_bytes=5, produce_limit=1.5, client_id="a"))
    files.write(batch(3, client_id='b "\n ü', produce_bytes=2**60))
    files.close()
    files.write(batch(4, produce_bytes=1000))  # not complete: no reader sees it
    glob = str(tmp_path / "**/*.jsonl")
    query = "SELECT client_id, sum(produce_bytes), max(produce_limit), any_value(hour) FROM {} GROUP BY 1 ORDER BY 1"
    expected = [("a", 10, 1.5, "12"), ('b "\n ü', 2**60, None, "12")]
    with duckdb.connect() as database:
        typed = f"read_json('{glob}', columns={record.duckdb_columns()}, hive_partitioning=true)"
        for source in (typed, f"read_json('{glob}', hive_partitioning=true)"):
            rows = database.sql(query.format(source)).fetchall()
            assert [(name, total, limit, str(hour)) for name, total, limit, hour in rows] == expected
        types = database.sql(f"DESCRIBE SELECT * FROM {typed}").fetchall()
    assert {name: kind for name, kind, *_ in types if name not in ("date", "hour")} == record.duckdb_columns()
    (path,) = complete_files(tmp_path)
    frame = pandas.read_json(path, lines=True)
    assert list(frame.columns) == list(NAMES)
    assert frame["produce_bytes"].sum() == 10 + 2**60
    files.close()
