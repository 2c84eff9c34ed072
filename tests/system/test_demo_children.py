"""The demo's child processes."""

from __future__ import annotations

import select
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.demo.children import Client
from deploy.demo.errors import DemoError
from deploy.demo.plan import PLANS


def test_a_client_that_ends_is_an_error_with_the_end_of_its_log(tmp_path: Path) -> None:
    client = Client(replace(PLANS[0], program="no_such_program"), "127.0.0.1:1", tmp_path)
    try:
        assert select.select([client], [], [], 20)[0]  # its output ends
        with pytest.raises(DemoError, match=r"client orders \(kafka-python\) ended with exit code 1\n(.*\n)*.*no_such"):
            list(client.messages())
    finally:
        client.stop()
