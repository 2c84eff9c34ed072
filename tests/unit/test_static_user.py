"""The static user from files: what Kubernetes' volumes look like, what is refused, what happens when files change."""

import base64
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from config.sections import StaticIdentity
from proxy.app.sources.security import BadFileError, read_static_user


def token(subject: str) -> str:
    claims = {"aud": ["kquota"], "sub": subject, "kubernetes.io": {"namespace": "orders"}}
    parts = (json.dumps({"alg": "RS256"}), json.dumps(claims), "signature")
    return ".".join(base64.urlsafe_b64encode(part.encode()).rstrip(b"=").decode() for part in parts)


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """As the kubelet writes it: a directory of the moment, and links to it."""
    first = tmp_path / "..2026_11_21_10_00_00.1"
    first.mkdir()
    (tmp_path / "..data").symlink_to(first.name)
    labels = 'app.kubernetes.io/name="web"\nteam="shop-1"\nempty=""\n'
    files = {"namespace": "orders", "pod": "web-5d9f-x2x4z", "labels": labels}
    for name, text in (files | {"token": token("system:serviceaccount:orders:checkout")}).items():
        (first / name).write_text(text)
        (tmp_path / name).symlink_to(f"..data/{name}")
    return tmp_path


def reading(template: str, directory: Path) -> str | None:
    return read_static_user(StaticIdentity(template=template, directory=str(directory)))


@pytest.mark.parametrize(
    ("template", "user"),
    [
        ("{namespace}/{service_account}", "orders/checkout"),
        ("{label:team}.{label:app.kubernetes.io/name}", "shop-1.web"),
        ("k8s:{pod}", "k8s:web-5d9f-x2x4z"),
    ],
)
def test_what_the_downward_api_says(volume: Path, template: str, user: str) -> None:
    assert reading(template, volume) == user


def _write(name: str, data: bytes) -> Callable[[Path], object]:
    def change(volume: Path) -> None:
        (volume / name).unlink(missing_ok=True)
        (volume / name).write_bytes(data)

    return change


@pytest.mark.parametrize(
    ("template", "change", "expected"),
    [
        ("{label:nobody}", lambda _: None, "labels: no label nobody"),
        ("{label:empty}", lambda _: None, "expected a valid Kubernetes name for label:empty, got ''"),
        ("{namespace}", _write("namespace", b"a/b"), "got 'a/b'"),
        ("{namespace}", _write("namespace", b"\xff"), "expected text in UTF-8"),
        ("{pod}", lambda volume: (volume / "pod").unlink(), "pod: cannot be read: No such file or directory"),
        ("{service_account}", _write("token", b"no token"), "token: expected the token of a service account"),
        ("{service_account}", _write("token", token("alice").encode()), "expected the token of a service account"),
    ],
)
def test_refuses_files_of_no_user(volume: Path, template: str, change: Callable[[Path], object], expected: str) -> None:
    change(volume)
    with pytest.raises(BadFileError) as refused:
        reading(template, volume)
    assert str(refused.value).startswith(f"identity.static {volume}")
    assert expected in str(refused.value)


def test_service_account_file_goes_before_the_token(volume: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NAMESPACE", "POD_NAMESPACE", "SERVICE_ACCOUNT"):
        monkeypatch.setenv(name, "admin")  # which is not believed
    assert reading("{namespace}/{service_account}", volume) == "orders/checkout"
    (volume / "service_account").write_text("cart\n")
    assert reading("{namespace}/{service_account}", volume) == "orders/cart"


def test_a_file_names_one_user(tmp_path: Path) -> None:
    user = StaticIdentity(file=str(tmp_path / "user"))
    (tmp_path / "user").write_text("CN=web\n")
    assert read_static_user(user) == "CN=web"
    for text, expected in (("\n", "is empty, expected the user"), ("a\nb\n", "expected one line of text, the user")):
        (tmp_path / "user").write_text(text)
        with pytest.raises(BadFileError, match=expected):
            read_static_user(user)
