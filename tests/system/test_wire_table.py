"""The generated table against the published schemas and against two libraries that encode messages by themselves."""

import random
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from kio.static.constants import EntityType

from proxy.core.wire import apis, responses, schema, throttle
from proxy.core.wire.frames import WireError
from tests.support.wire_tools import (
    THROTTLE_MS,
    every_way,
    kio_class,
    kio_frame,
    kio_versions,
    only_change,
    sample,
    throttle_offset,
)

ALL_VERSIONS = [(key, version) for key, (_, low, high, *_) in schema.APIS.items() for version in range(low, high + 1)]


def test_committed_schema_matches_published_schemas() -> None:
    command = [sys.executable, "-m", "tests.lab.wire_schema", "--check"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr


def test_table_has_every_kio_version_with_its_headers() -> None:
    checked = 0
    for kind in (EntityType.request, EntityType.response):
        for key, version in kio_versions(kind):
            cls = kio_class(key, version, kind)
            assert apis.is_known(key, version), (key, version)
            assert apis.is_flexible(key, version) is cls.__flexible__, (key, version)
            of_header = apis.request_header_version if kind is EntityType.request else apis.response_header_version
            assert of_header(key, version) == cls.__header_schema__.__version__, (key, version)
            checked += 1
    assert checked > 500


def throttle_in(frame: bytes, key: int, version: int) -> int | None:
    """What patch_throttle says is there, in all three ways: patched one up, and back."""

    def patch(buf: bytearray, start: int, end: int) -> int | None:
        before = bytes(buf)
        if not throttle.patch_throttle(buf, start, end, key, version, THROTTLE_MS + 1):
            assert bytes(buf) == before
            return None
        position = only_change(before, buf) - 3  # 0x04 became 0x05
        assert struct.unpack_from(">i", before, position)[0] == THROTTLE_MS
        assert throttle.patch_throttle(buf, start, end, key, version, THROTTLE_MS)  # the higher one stays
        assert struct.unpack_from(">i", buf, position)[0] == THROTTLE_MS + 1
        return position - start

    position: int | None = every_way(patch, frame)
    return position


@pytest.mark.parametrize("key", sorted({key for key, _ in kio_versions()}))
def test_throttle_field_of_kio_messages(key: int) -> None:
    for _, version in (pair for pair in kio_versions() if pair[0] == key):
        for seed in range(4):
            message = sample(kio_class(key, version), random.Random(seed))
            if key == apis.API_VERSIONS and message.error_code.value == responses.UNSUPPORTED_VERSION:
                continue
            frame = kio_frame(message)
            position = throttle_in(frame, key, version)
            assert (position is not None) is hasattr(message, "throttle_time"), (key, version)
            if position is not None and not throttle.needs_whole_frame(key, version):
                assert position == throttle_offset(key, version)
            else:
                assert throttle_offset(key, version) is None


def test_which_responses_are_rewritten() -> None:
    carrying = {(key, version) for key, version in ALL_VERSIONS if responses.carries_addresses(key, version)}
    assert {key for key, _ in carrying} == {0, 1, 3, 10, 60, 78, 79}  # not DescribeQuorum: controllers
    assert {version for key, version in carrying if key == 0} == {10, 11, 12, 13}
    assert {version for key, version in carrying if key == 1} == {16, 17, 18}
    for key, version in ALL_VERSIONS:
        # Fetch is asked for in a version without addresses, and what ApiVersions offers is clamped.
        expected = ((key, version) in carrying and key != 1) or key == 18
        assert responses.needs_rewrite(key, version) is expected, (key, version)


@pytest.mark.parametrize("key", sorted(schema.ADDRESS_WALKS))
def test_refuses_unknown_versions_with_addresses(key: int) -> None:
    unknown = schema.APIS[key][2] + 1
    for version in (unknown, -1):
        assert responses.needs_rewrite(key, version)
        with pytest.raises(WireError) as caught:
            responses.carries_addresses(key, version)
        assert caught.value.reason == "unsupported_version"
        frame = bytearray(struct.pack(">ii", 60, 1) + bytes(56))
        with pytest.raises(WireError) as caught:
            responses.rewrite(key, version, frame, 0, len(frame), lambda *_: ("h", 1))
        assert caught.value.reason == "unsupported_version"


def test_fetch_is_asked_for_with_a_version_without_addresses() -> None:
    newest = schema.APIS[apis.FETCH][2]
    upstream = [responses.fetch_version_upstream(version) for version in range(newest + 1)]
    assert upstream == [*range(16), 15, 15, 15]
    assert not any(responses.carries_addresses(apis.FETCH, version) for version in upstream)
    assert responses.fetch_version_upstream(newest + 1) == newest + 1  # refused elsewhere, not guessed
