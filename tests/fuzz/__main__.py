"""Run targets under atheris (libFuzzer), each in a process of its own, and say what was done.

    python -m tests.fuzz [--runs N | --seconds N] [--corpus DIR] [--out FILE] [target ...]

Inputs that find new code are kept in the corpus directory (.fuzz by default) and start the next run. The exit code is 1
if any target has a finding; its input is left in the corpus directory, and `--replay FILE target` runs it once more.
"""

from __future__ import annotations

import argparse
import atexit
import json
import re
import resource
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.fuzz import blind

INSTRUMENTED = ("config", "proxy.core.session", "proxy.core.interceptors", "proxy.net.tls.certificates",
    "proxy.core.auth.sasl", "proxy.core.wire", "quota.admin", "proxy.net.files")  # fmt: skip
"""Modules whose branches guide the fuzzer. The arithmetic of quotas is not one of them: it sees no bytes."""
SLOWEST_INPUT_S = 10
MAX_MEMORY_MB = 1024


@dataclass(frozen=True)
class Result:
    target: str
    executions: int
    seconds: float
    edges: int
    """Counters of instrumented branches that were reached (libFuzzer's cov)."""
    features: int
    corpus: int
    finding: str | None
    """What libFuzzer said of the input that broke an invariant; None if there is none."""


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        _child(sys.argv[2], sys.argv[3:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=-1, help="executions per target; -1: as many as there is time for")
    parser.add_argument("--seconds", type=int, default=60, help="time per target")
    parser.add_argument("--corpus", type=Path, default=Path(".fuzz"))
    parser.add_argument("--out", type=Path, help="results as JSON lines, appended")
    parser.add_argument("--list", action="store_true", help="names of the targets, and nothing else")
    parser.add_argument("--replay", type=Path, help="run this one input")
    parser.add_argument("targets", nargs="*")
    options = parser.parse_args()
    from tests.fuzz.targets import TARGETS

    if options.list:
        print("\n".join(TARGETS))
        return
    unknown = [name for name in options.targets if name not in TARGETS]
    if unknown:
        parser.error(f"no such target: {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    if options.replay:
        for name in options.targets:
            TARGETS[name].run(options.replay.read_bytes())
        return
    results = [run(name, options.corpus, options.runs, options.seconds) for name in options.targets or TARGETS]
    if options.out:
        with options.out.open("a") as out:
            out.writelines(json.dumps(asdict(result)) + "\n" for result in results)
    sys.exit(any(result.finding for result in results))


def run(name: str, corpus: Path, runs: int, seconds: int) -> Result:
    from tests.fuzz.targets import TARGETS

    wanted = TARGETS[name]
    seeds, grown, findings = (corpus / kind / name for kind in ("seeds", "corpus", "findings"))
    wanted.write_seeds(seeds)
    for directory in (grown, findings):
        directory.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    # libFuzzer asks for the peak of the process, and what it is started from hands its own peak on (getrusage(2)).
    most_mb = MAX_MEMORY_MB + resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "--child", name, f"-atheris_runs={runs}", f"-max_total_time={seconds}",
         f"-max_len={wanted.max_bytes}", f"-timeout={SLOWEST_INPUT_S}", f"-rss_limit_mb={most_mb}",
         f"-artifact_prefix={findings}/", "-print_final_stats=1", str(grown), str(seeds)],
        capture_output=True, text=True, errors="replace", check=False,
    )  # fmt: skip
    said = done.stdout + done.stderr
    numbers = re.findall(r"#(\d+)\s.*?cov: (\d+) ft: (\d+) corp: (\d+)", said) or [("0",) * 4]
    executed = re.findall(r"(?:stat::number_of_executed_units:\s+|^Done )(\d+)", said, re.MULTILINE) or [numbers[-1][0]]
    found = [line for line in said.splitlines() if "Uncaught Python exception" in line or "ERROR: libFuzzer" in line]
    if found or done.returncode:
        (findings / "said.txt").write_text(said)
        found = found or [f"exit code {done.returncode}"]
    _, edges, features, kept = map(int, numbers[-1])
    seconds_taken = round(time.monotonic() - began, 1)
    result = Result(name, int(executed[-1]), seconds_taken, edges, features, kept, " | ".join(found) or None)
    per_s = result.executions / max(result.seconds, 0.1)
    print(f"{name:28} {result.executions:>9} executions {seconds_taken:>7.1f} s {per_s:>7.0f}/s  edges {edges:>5}  "
          f"{'nothing found' if not found else _excerpt(said)}", flush=True)  # fmt: skip
    return result


def _excerpt(said: str) -> str:
    at = said.find("=== Uncaught Python exception")
    answer = said[at:].split("\n\n")[0] if at >= 0 else said[-1500:]
    return "\n".join([answer, *re.findall(r"Test unit written to .*", said)])


def _child(name: str, arguments: list[str]) -> None:
    try:
        import atheris
    except ImportError:
        blind.main(name, arguments)
        return
    with atheris.instrument_imports(include=list(INSTRUMENTED), enable_loader_override=False):
        from tests.fuzz.targets import TARGETS
    # libFuzzer's timer for slow inputs goes on until the end, and is deadly once Python has put its handler away.
    atexit.register(signal.setitimer, signal.ITIMER_REAL, 0)
    atheris.Setup([sys.argv[0], *arguments], TARGETS[name].run)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
