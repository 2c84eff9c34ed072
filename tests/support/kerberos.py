"""A Kerberos server (MIT's, Debian's krb5-kdc) on a port of this machine, with a realm that lasts as long as a test."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.lab.kafka.ports import free_ports
from tests.support.programs import program
from tests.support.waiting import listens, until

REALM: Final = "KQUOTA.TEST"
_CLIENTS: Final = """\
[libdefaults]
 default_realm = {realm}
 dns_lookup_kdc = false
 dns_lookup_realm = false
 dns_canonicalize_hostname = false
 rdns = false
 udp_preference_limit = 1
[realms]
 {realm} = {{
  kdc = 127.0.0.1:{port}
 }}
"""
_SERVER: Final = """\
[kdcdefaults]
 kdc_listen = 127.0.0.1:{port}
 kdc_tcp_listen = 127.0.0.1:{port}
[realms]
 {realm} = {{
  database_name = {directory}/principal
  key_stash_file = {directory}/stash
  acl_file = {directory}/acl
 }}
[logging]
 kdc = FILE:{directory}/kdc.log
"""
START_LIMIT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Realm:
    config: Path
    keytab: Path

    @property
    def jvm(self) -> tuple[str, ...]:
        return (f"-Djava.security.krb5.conf={self.config}",)

    def jaas(self, principal: str) -> str:
        """A login of Java's as this principal, by the keytab; the value of `sasl.jaas.config`."""
        module = "com.sun.security.auth.module.Krb5LoginModule"
        options = f'useKeyTab=true storeKey=true keyTab="{self.keytab}" principal="{principal}@{REALM}"'
        return f"{module} required {options};"


@contextmanager
def realm(directory: Path, *principals: str) -> Iterator[Realm]:
    """A new realm with these principals; its server ends with the block."""
    package = "krb5-kdc, krb5-admin-server"
    create, admin, server = (program(name, package) for name in ("kdb5_util", "kadmin.local", "krb5kdc"))
    (port,) = free_ports(1)
    made = Realm(directory / "krb5.conf", directory / "all.keytab")
    own = directory / "kdc.conf"
    made.config.write_text(_CLIENTS.format(realm=REALM, port=port))
    own.write_text(_SERVER.format(realm=REALM, port=port, directory=directory))
    env = os.environ | {"KRB5_CONFIG": str(made.config), "KRB5_KDC_PROFILE": str(own)}

    def run(*command: str) -> None:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, (command, done.stdout, done.stderr)

    run(create, "create", "-s", "-r", REALM, "-P", "of this test alone")
    for principal in principals:
        run(admin, "-r", REALM, "addprinc", "-randkey", principal)
    run(admin, "-r", REALM, "ktadd", "-k", str(made.keytab), "-norandkey", *principals)

    with (directory / "console.log").open("wb") as console:
        process = subprocess.Popen([server, "-n", "-r", REALM], env=env, stdout=console, stderr=console)
        try:
            until(lambda: listens("127.0.0.1", port) or process.poll() is not None, limit_s=START_LIMIT_S)
            assert process.poll() is None, "the Kerberos server has ended"
            yield made
        finally:
            process.terminate()
            process.wait(START_LIMIT_S)
