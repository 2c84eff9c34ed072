"""The benchmark program: a tiny run against a real broker (what it computes: test_benchmarks_smoke.py)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.__main__ import main
from benchmarks.report import tables as report
from benchmarks.rig import affinity, variants
from benchmarks.rig.tls import CIPHER_SUITE
from benchmarks.suites.plan import TINY
from quota import compiled

pytestmark = pytest.mark.long

BY_TLS = (
    *("tls-broker-small", "tls-broker-together", "tls-broker-connects"),
    *("tls-client-small", "tls-client-together", "tls-client-full", "tls-client-resumed"),
    *("tls-both-fetch", "tls-both-small", "tls-both-together"),
)

# ---- a real run ----------------------------------------


@pytest.mark.timeout(240)
def test_tiny_run_measures_kquota_beside_direct(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = os.sched_getaffinity(0)
    code = main(["--plan", "tiny", "--variants", "direct,05", "--output", str(tmp_path)], Console(width=180))
    out = capsys.readouterr().out
    (file,) = tmp_path.glob("*.samples.json")
    assert file.with_name(file.name.replace(".samples", "")).exists()
    result = report.load(file)
    assert result["errors"] == [], out
    assert code == 0
    assert result["project"]["data_path"] == compiled.description()
    assert f"kquota's data path: {compiled.description()}" in out
    samples = {(sample["scenario"], sample["variant"]): sample["values"] for sample in result["samples"]}
    apart = set() if affinity.missing() else {"produce-apart", "fetch-apart"}
    assert result["skipped"].keys() == {"produce-apart", "fetch-apart"} - apart
    both = {
        (key, variant)
        for key in ("produce", "fetch", "small", "together", "busy", "answers-1", "answers-8", *apart, *BY_TLS)
        for variant in ("01-direct", variants.KQUOTA.key)
    }
    both.remove(("tls-client-resumed", "01-direct"))
    assert samples.keys() == both | {("memory", variants.KQUOTA.key), ("memory-after", variants.KQUOTA.key)}
    small = samples["small", variants.KQUOTA.key]
    assert small["requests"] == TINY.small_rate_per_s * TINY.small_s
    assert small["cpu_us_per_request"] > 0
    # Two ways, one request after the other; what the proxy used is not told apart by way.
    for key in (variants.DIRECT.key, variants.KQUOTA.key):
        beside = samples["together", key]
        assert beside["requests"] == TINY.small_rate_per_s * TINY.together_s / 2
        assert 0 < beside["p50_us"] <= beside["p99_us"]
        assert "cpu_us_per_request" not in beside
    assert samples["fetch", variants.KQUOTA.key]["cpu_s_per_gb"] > 0
    assert samples["memory", variants.KQUOTA.key]["rss_mb_0"] > 5
    for key in ("answers-1", "answers-8"):
        values = samples[key, variants.KQUOTA.key]
        assert values["mb_per_s"] > 1
        assert values["responses"] >= 1
        assert values["cpu_s_per_gb"] > 0
    # What was spoken, as a client has found it: directly, the same as to the proxy.
    suite = f"TLSv1.3 {CIPHER_SUITE}"
    assert result["tls"] == {
        f"{sides} {key}": spoken
        for sides, spoken in (("tls-broker", "plain"), ("tls-client", suite), ("tls-both", suite))
        for key in ("01-direct", variants.KQUOTA.key)
    }
    for key in BY_TLS:
        values = samples[key, variants.KQUOTA.key]
        if key.endswith(("-full", "-resumed", "-connects")):
            assert values["connections"] >= 1
            assert values["cpu_us_per_connection"] > 0
        elif key.endswith("-small"):
            assert values["requests"] == TINY.small_rate_per_s * TINY.small_s
            assert values["cpu_us_per_request"] > 0
    assert samples["tls-both-fetch", variants.KQUOTA.key]["cpu_s_per_gb"] > 0
    cores = sorted(os.sched_getaffinity(0))
    for key in apart | ({"answers-1", "answers-8"} if apart else set()):
        through, direct = samples[key, variants.KQUOTA.key], samples[key, "01-direct"]
        # What the kernel said while it was measured: the same for broker and clients, with and without a proxy.
        assert through["core_of_proxy"] == cores[-1]
        assert "core_of_proxy" not in direct
        for values in (through, direct):
            assert values["cores_of_broker"] == values["cores_of_clients"] == len(cores) - 1
    assert len(cores) == len(before)  # and all processes may use all of them again
    titles = [target.title for target in report.targets(result)]
    assert "fetch, 8 connections, neither end the limit: MB/s" in titles
    assert ("consumer: throughput × direct, the proxy having a core" in titles) == bool(apart)
    assert "TLS" not in "".join(titles)  # HAProxy was not there to be compared with
    assert "kquota, quotas" in out
    assert file.with_suffix(".md").is_file()
    assert file.with_suffix(".png").stat().st_size > 10_000
