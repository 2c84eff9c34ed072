"""Kernel TLS is tried, and done without wherever something is missing."""

from __future__ import annotations

import errno
import ssl
from collections.abc import Iterator

import pytest

from proxy.tls import channel, kernel_tls
from proxy.tls.channel import ENABLE_KERNEL_TLS
from proxy.tls.contexts import ClientTls
from quota import compiled


@pytest.fixture(autouse=True)
def tried_anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As where the data path is compiled and OpenSSL can be called, which the kernel has nothing to do with."""
    monkeypatch.setattr(compiled, "WHY_NOT", "")
    monkeypatch.setattr(channel, "WHY_NOT", "")
    monkeypatch.delenv(kernel_tls.VARIABLE, raising=False)
    kernel_tls.why_not.cache_clear()
    yield
    kernel_tls.why_not.cache_clear()


def refused() -> None:
    raise FileNotFoundError(errno.ENOENT, "No such file or directory")


def test_what_this_kernel_says_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_tls, "_try", lambda: None)
    assert kernel_tls.why_not() == ""
    assert kernel_tls.description() == "on"
    kernel_tls.why_not.cache_clear()
    monkeypatch.setattr(kernel_tls, "_try", refused)
    assert kernel_tls.description() == "off: the kernel's module tls is not loaded (No such file or directory)"


def test_a_real_attempt_says_what_the_kernel_lists() -> None:
    with open("/proc/sys/net/ipv4/tcp_available_ulp", encoding="ascii") as listed:
        has_it = "tls" in listed.read().split()
    assert (kernel_tls.why_not() == "") is has_it


@pytest.mark.parametrize("has_it", [True, False])
def test_openssl_is_asked_to_use_it_only_where_it_is(has_it: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_tls, "_try", (lambda: None) if has_it else refused)
    context = ClientTls()._load(first=True)
    assert bool(context.options & ENABLE_KERNEL_TLS) is has_it


def test_it_can_be_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_tls, "_try", lambda: None)
    monkeypatch.setenv(kernel_tls.VARIABLE, "0")
    assert kernel_tls.description() == "off: KQUOTA_KERNEL_TLS is 0"


def test_it_needs_compiled_code_that_calls_openssl_3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_tls, "_try", lambda: pytest.fail("nothing is to be tried"))
    monkeypatch.setattr(ssl, "OPENSSL_VERSION_INFO", (1, 1, 1, 11, 15))
    monkeypatch.setattr(ssl, "OPENSSL_VERSION", "OpenSSL 1.1.1k")
    assert kernel_tls.why_not() == "OpenSSL 1.1.1k is older than 3.0"
    kernel_tls.why_not.cache_clear()
    monkeypatch.setattr(channel, "WHY_NOT", "OpenSSL is linked in statically")
    assert kernel_tls.why_not() == "OpenSSL is linked in statically"
    kernel_tls.why_not.cache_clear()
    monkeypatch.setattr(compiled, "WHY_NOT", "KQUOTA_PURE is set")
    assert kernel_tls.why_not() == "the data path is not compiled"
