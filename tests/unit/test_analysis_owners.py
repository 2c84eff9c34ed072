"""The file of owners: what it means, and what is wrong with one."""

import re
from typing import Any

import pytest

from analysis.owners import Owners, expression
from config.load import validate
from config.problems import ConfigError
from config.source import Source


def test_owner_patterns_match_whole_names() -> None:
    names = ["", "app", "app-", "app-1.x", "my-app-1", "a", "ab", "abc", "a.b+[c]", "axb+[c]", "a.bb[c]", "x\ny"]
    for pattern, fits in {"app-*": names[2:4], "a?": ["ab"], "a.b+[c]": ["a.b+[c]"], "*": names, "": [""]}.items():
        assert [name for name in names if re.fullmatch(expression(pattern), name)] == fits, pattern


@pytest.mark.parametrize(
    ("values", "answer"),
    [
        ([], "o.yaml: got [], expected a mapping"),
        ({"owners": ["shop"]}, 'owners[0]: got "shop", expected a mapping'),
        ({"owners": [{"team": "a", "usr": "x"}]}, "owners[0].usr: unknown key, did you mean user?"),
        ({"owners": [{"team": "a", "user": 7}]}, "owners[0].user: got 7, expected text"),
        ({"owners": [{"user": "x"}]}, "owners[0].team: expected a value: The name of the team."),
        ({"owners": [{"team": "a"}]}, "owners[0]: got a mapping with team, expected user or client-id"),
    ],
)
def test_wrong_files_are_named(values: Any, answer: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(answer)):
        validate(Owners, Source("o.yaml", values))
