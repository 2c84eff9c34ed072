"""docs/operations.md lists each warning and error of the log under its text, and no text that is gone."""

import ast
import re
from pathlib import Path

import structlog
import trio
from trio.testing import MockClock

from deploy.kubernetes import webhook
from deploy.kubernetes.cluster import ApiServerError

ROOT = Path(__file__).resolve().parents[2]
TABLE = (ROOT / "docs/operations.md").read_text().partition("\n## Log messages\n")[2]
LOGGED = {"warning", "error", "exception", "_complain"}
INTERNAL_ERROR = ": internal error"


def texts(node: ast.AST) -> set[str]:
    return {one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)}


def test_each_warning_and_error_is_in_the_table() -> None:
    rows = [row.split(" | ")[0] for row in TABLE.splitlines() if row.startswith("| `")]
    listed = {text for row in rows for text in re.findall(r"`([^`]+)`", row)}
    every, logged, internal = set(), set(), set()
    for file in (file for folder in ("proxy", "deploy") for file in (ROOT / folder).rglob("*.py")):
        tree = ast.parse(file.read_text())
        every |= texts(tree)
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in LOGGED:
                found = set().union(*map(texts, call.args[:1])) - {""}
                logged |= found
                internal |= found if call.func.attr == "exception" else set()
    assert len(logged) > 50
    assert {text for text in logged if not text.endswith(INTERNAL_ERROR)} == listed & logged
    assert listed - every == {f"…{INTERNAL_ERROR}"}
    assert {text for text in internal if not text.endswith(INTERNAL_ERROR)} == set()


async def test_no_answer_of_the_api_server_is_no_refused_certificate(autojump_clock: MockClock) -> None:
    async def look() -> webhook.Pair:
        raise ApiServerError("GET secret", 0, "no answer")

    with structlog.testing.capture_logs() as logs, trio.move_on_after(10 * webhook.CERTIFICATE_POLL_S):
        await webhook._Certificate(None, "", look).follow()  # type: ignore[arg-type]
    assert [line["event"] for line in logs] == [webhook.NO_ANSWER]
