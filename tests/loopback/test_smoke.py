"""The chart's test command where nothing needs a broker."""

import pytest

from proxy.app.cli import smoke
from tests.lab.kafka.ports import free_ports


@pytest.mark.parametrize("tls", [[], ["--tls"]])
def test_takes_addresses_as_bootstrap_servers_has_them(tls: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    (port,) = free_ports(1)
    arguments = [f"--bootstrap=[::1]:{port}", "--broker-ports=19092", "--limit-s=0", *tls]
    assert smoke.main(arguments) == 1
    assert "Connection refused" in capsys.readouterr().err
    for wrong, expected in (("--bootstrap=kafka", "got kafka, expected host:port"), ("--broker-ports=a-b", "got a-b")):
        with pytest.raises(SystemExit):
            smoke.main([*arguments, wrong])
        assert expected in capsys.readouterr().err
