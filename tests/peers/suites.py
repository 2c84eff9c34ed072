"""The suites: where their sources come from, how they are built, and how one run is made.

franz-go comes as a Go module (tests/go/peers), librdkafka inside the crate that carries its sources (tests/rust); both
are pinned by version and sum, and what is built from them is kept in the cache.
"""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.lab.releases import NEW
from tests.peers.outcomes import Ended, of_go, of_librdkafka
from tests.support import go_tools
from tests.support.kept_builds import kept, key_of

CRATE: Final = Path(__file__).parents[1] / "rust" / "librdkafka"
BROKERS: Final = 3
"""Both suites make topics with three replicas."""
PARTITIONS: Final = 4
"""librdkafka's tests want topics that are made by themselves to have as many."""
LIMIT_S: Final = 900.0
TIMEOUT_FACTOR: Final = 3.0
"""Times that librdkafka's tests wait as long as their authors' machines need."""
RECORDS: Final = 5000
"""Records of franz-go's chains of groups and transactions; half a million where its authors run them."""

LIBRDKAFKA: Final = (
    "0001", "0002", "0003", "0005", "0007", "0008", "0011", "0012", "0013", "0014", "0015", "0016", "0017", "0020",
    "0021", "0022", "0029", "0030", "0031", "0034", "0035", "0036", "0038", "0039", "0040", "0041", "0042", "0044",
    "0048", "0051", "0054", "0055", "0056", "0057", "0059", "0060", "0063", "0064", "0065", "0067", "0069", "0070",
    "0073", "0083", "0084", "0085", "0086", "0090", "0099", "0103", "0112", "0113", "0114", "0118", "0123", "0125",
    "0127", "0129", "0130", "0140",
)  # fmt: skip
"""Those that ask something of ordinary brokers in quick mode: not those that call Kafka's own
tools or want an authorizer (0052, 0077, 0081, 0109, 0115, 0119), break connections by themselves (sockem), do nothing
in quick mode, have brokers of their own (mock), are listed as known to fail, or wait for minutes (0033, 0091, 0093)."""


class NoSuiteError(Exception):
    """A suite cannot be built here; says what is missing."""


@dataclass(frozen=True, slots=True)
class Suite:
    name: str
    part: str
    run: Callable[[str, Sequence[str]], dict[str, Ended]]


def franz_go() -> Suite:
    """All tests of franz-go's client; NoSuiteError without a Go that can build them."""
    package = "github.com/twmb/franz-go/pkg/kgo"
    try:
        program = go_tools.tests_of("peers", package)
        folder = go_tools.source("peers", "github.com/twmb/franz-go") / "pkg/kgo"
    except go_tools.NoGoError as error:
        raise NoSuiteError(str(error)) from error

    def run(bootstrap: str, names: Sequence[str]) -> dict[str, Ended]:
        chosen = f"^({'|'.join(names)})$" if names else "."
        command = [str(program), "-test.v", "-test.run", chosen, "-test.timeout", f"{LIMIT_S:.0f}s"]
        settings = {"KGO_SEEDS": bootstrap, "KGO_TEST_RECORDS": str(RECORDS)}
        return of_go(_output_of(command, folder, settings))

    return Suite("franz-go", f"all tests of pkg/kgo, with {RECORDS} records", run)


def librdkafka() -> Suite:
    """The part of librdkafka's tests that wants ordinary brokers; NoSuiteError without cargo and a C compiler."""
    built = kept("peers", key_of([CRATE / "Cargo.lock"]), _build_librdkafka)

    def run(bootstrap: str, names: Sequence[str]) -> dict[str, Ended]:
        numbers = [name[:4] for name in names] or LIBRDKAFKA
        with tempfile.TemporaryDirectory(prefix="kquota-peers-") as scratch:
            folder = Path(scratch)
            conf = {"metadata.broker.list": bootstrap, "test.topic.random": "true"}
            conf["test.timeout.multiplier"] = f"{TIMEOUT_FACTOR:g}"
            (folder / "test.conf").write_text("".join(f"{name}={value}\n" for name, value in conf.items()))
            (folder / "fixtures").symlink_to(built / "tests/fixtures")
            settings = {
                "TESTS": ",".join(numbers),
                "TEST_REPORT": str(folder / "report.json"),
                "TEST_KAFKA_VERSION": NEW,
                "LD_LIBRARY_PATH": f"{built / 'src'}:{built / 'src-cpp'}",
            }
            # Quick, two at a time, none that needs no broker, none that breaks its connections or is known to fail.
            command = [str(built / "tests/test-runner"), "-Q", "-p3", "-L", "-E", "-K"]
            output = _output_of(command, folder, settings)
            try:
                return of_librdkafka((folder / "report.json").read_text(), numbers)
            except (FileNotFoundError, json.JSONDecodeError) as error:
                raise NoSuiteError(f"librdkafka's test-runner left no report ({error}):\n{output[-3000:]}") from error

    return Suite("librdkafka", f"{len(LIBRDKAFKA)} numbers of its tests, quick mode", run)


SUITES: Final[dict[str, Callable[[], Suite]]] = {"franz-go": franz_go, "librdkafka": librdkafka}


def _output_of(command: Sequence[str], folder: Path, settings: dict[str, str]) -> str:
    """What it says; a run that takes too long is ended, and what it has said until then counts."""
    env, out = os.environ | settings, subprocess.PIPE
    with subprocess.Popen(command, cwd=folder, env=env, stdout=out, stderr=subprocess.STDOUT) as process:
        try:
            said, _ = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            process.terminate()  # librdkafka's runner writes its report, and so does Go with its time limit
            try:
                said, _ = process.communicate(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                said, _ = process.communicate()
    return said.decode(errors="replace")


def _build_librdkafka(target: Path) -> None:
    if shutil.which("cargo") is None:
        raise NoSuiteError("librdkafka's sources come inside a crate: cargo is needed on PATH (Debian's package cargo)")
    answer = json.loads(_done(["cargo", "metadata", "--format-version", "1", "--locked"], CRATE))
    (manifest,) = [one["manifest_path"] for one in answer["packages"] if one["name"] == "rdkafka-sys"]
    shutil.copytree(Path(manifest).parent / "librdkafka", target, dirs_exist_ok=True)
    _done(["bash", "./configure", "--disable-lz4-ext"], target)
    _done(["make", "-j2", "libs"], target)
    _done(["make", "-j2", "-C", "tests", "test-runner"], target)


def _done(command: Sequence[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        raise NoSuiteError(f"{' '.join(command)} in {folder} failed:\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout
