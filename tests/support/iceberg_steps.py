"""Steps on a store whose records are an Iceberg table, in a process of its own: the jar has to be on the class path
when the JVM starts, and the JVM of the other tests does not have it.
"""

from __future__ import annotations

import json
import shutil
import sys
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis import cli
from analysis.compact import CompactSettings, compact
from analysis.days import Days
from analysis.intake import read
from analysis.runner import Asked, make
from analysis.session import open_session
from analysis.store import Store, session_conf
from tests.support.spark_tools import DAY_MS, QUICK, T0_MS, watched

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOW_MS = T0_MS + 3 * DAY_MS + 3 * 3_600_000
DAYS = ("2025-10-20", "2025-10-22")
REPORT, OPTIONS = "capacity", {"capacity": dict[str, float]()}
"""A report that reads records, not rollups."""


def state_of(spark: SparkSession, store: Path) -> dict[str, Any]:
    table = Store(spark, str(store)).table
    assert table is not None
    rows = table.read().select("date", "cluster", "instance", "sequence").collect()
    commits = spark.table(f"{table.name}.snapshots").orderBy("committed_at").select("operation").collect()
    return {
        "records": sorted(list(row) for row in rows),
        "files": sum(table.files(day)[0] for day in {row["date"] for row in rows}),
        "commits": [row[0] for row in commits],
    }


def main(folder: Path) -> None:
    table = folder / "table"
    steps: dict[str, Any] = {}
    quick = [*QUICK, "--conf", "spark.sql.adaptive.enabled=false"]
    arguments = ["compact", "--input", str(folder / "raw"), "--output", str(table), "--memory", "700m", *quick]
    assert cli.main([*arguments, "--format", "iceberg"]) == cli.OK
    assert cli.main(arguments) == cli.OK  # it finds out that the store is a table
    steps["wrong"] = cli.main([*arguments, "--format", "files"])
    given = dict(setting.split("=", 1) for setting in quick[1::2])
    spark = open_session("local[2]", "700m", given | session_conf({}, [str(table)], None))

    def run(source: str, **more: Any) -> list[str]:
        answer: list[str] = []
        compact(spark, CompactSettings(str(folder / source), str(table), **more), answer.append, now_ms=NOW_MS)
        return answer

    steps["made"] = state_of(spark, table)
    steps["printed"] = run("late")
    steps["merged"] = state_of(spark, table)
    # A day once more, as after a run that was interrupted before it wrote its state.
    for state in (table / "_compacted").glob(f"*date={DAYS[0]}*"):
        state.unlink()
    run("raw", form="iceberg")
    steps["again"] = state_of(spark, table)
    make(spark, REPORT, Asked(str(table), str(folder / "of-table"), 60, OPTIONS, quiet=True, now_ms=NOW_MS))
    # Five files of one day and cluster are rewritten as one.
    records = Store(spark, str(table)).table
    assert records is not None
    one = records.read().where(f"date = '{DAYS[0]}' AND cluster = 'east'").limit(1)
    for number in range(201, 204):
        records.merge(DAYS[0], one.drop("sequence").selectExpr("*", f"{number}L AS sequence"))
    steps["tidied"] = state_of(spark, table)
    # Of one day only its files are read: those of the other one are not missed.
    files = table / f"records/data/date={DAYS[0]}"
    shutil.copytree(table / "rollups", folder / "rollups-of-table")
    files.rename(folder / "away")
    last = Days(date.fromisoformat(DAYS[1]))
    with watched(spark) as seen:
        steps["last day"] = read(spark, str(table), (), str(folder / "staging"), now_ms=NOW_MS, days=last).quality.used
    steps["plans"] = [plan for plan in seen if "BatchScan" in plan][:1]
    (folder / "away").rename(files)
    run("late", keep_days=2)
    steps["kept"] = state_of(spark, table)
    (folder / "steps.json").write_text(json.dumps(steps))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
