"""URLs with credentials: what is shown, what is requested, and where the credentials go."""

from __future__ import annotations

import base64

import pytest

from envguard.acquire.seam.address import Address

SECRET = "s3cretPW"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://host/x-1.0-py3-none-any.whl", "https://host/x-1.0-py3-none-any.whl"),
        (f"https://user:{SECRET}@host/simple", "https://host/simple"),
        (f"https://{SECRET}@host/simple/", "https://host/simple/"),
        (f"https://user:{SECRET}@host:8080/simple", "https://host:8080/simple"),
        (f"https://user:{SECRET}@[::1]:8080/simple", "https://[::1]:8080/simple"),
        (f"https://us%40er:{SECRET}%2F@host/simple", "https://host/simple"),
        (f"https://user:p/{SECRET}@host/simple", "https://host/simple"),
        (f"https://user:p@{SECRET}@host/simple", "https://host/simple"),
        (f"https://host/w.whl?token={SECRET}#sha256=aa", "https://host/w.whl#sha256=aa"),
        (
            f"https://b.s3.amazonaws.com/w.whl?X-Amz-Signature={SECRET}&X-Amz-Date=1",
            "https://b.s3.amazonaws.com/w.whl",
        ),
        (f"https://x.blob.core.windows.net/w.whl?sv=2&sig={SECRET}", "https://x.blob.core.windows.net/w.whl"),
        (f"git+https://oauth2:{SECRET}@gitlab.com/a/b.git@main#egg=b", "git+https://gitlab.com/a/b.git@main#egg=b"),
        ("../wheels/x-1.0-py3-none-any.whl", "../wheels/x-1.0-py3-none-any.whl"),
    ],
)
def test_what_is_shown_holds_no_credentials(url: str, shown: str) -> None:
    address = Address(url)
    assert str(address) == shown
    assert SECRET not in f"{address} {address!r} {[address]}"


@pytest.mark.parametrize(
    ("url", "pair"),
    [
        (f"https://user:{SECRET}@host/w.whl", f"user:{SECRET}"),
        (f"https://{SECRET}@host/w.whl", f"{SECRET}:"),
        (f"https://__token__:{SECRET}%40%3A@host/w.whl", f"__token__:{SECRET}@:"),
        ("https://host/w.whl", None),
    ],
)
def test_what_is_requested_carries_them_in_a_header(url: str, pair: str | None) -> None:
    address = Address(url)
    assert address.request_url == "https://host/w.whl"
    expected = None if pair is None else "Basic " + base64.b64encode(pair.encode()).decode()
    assert address.authorization == expected


@pytest.mark.parametrize(
    ("target", "goes_along"),
    [
        ("../../files/w.whl", True),
        ("https://host/files/w.whl", True),
        ("HTTPS://HOST/files/w.whl", True),
        ("https://files.other.example/w.whl", False),
        ("http://host/files/w.whl", False),
        ("https://host:444/files/w.whl", False),
        ("//other/w.whl", False),
    ],
)
def test_credentials_of_an_index_go_to_its_own_origin_alone(target: str, goes_along: bool) -> None:
    page = Address(f"https://user:{SECRET}@host/simple?t=1").below("torch")
    assert page.request_url == "https://host/simple/torch/?t=1"
    found = page.joined(target)
    assert (found.authorization is not None) is goes_along
    assert found.filename == "w.whl"


def test_one_with_credentials_is_another_than_one_without() -> None:
    assert Address("https://user:a@host/x") != Address("https://host/x")
    assert len({Address("https://user:a@host/x"), Address("https://user:a@host/x")}) == 1
