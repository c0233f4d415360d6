"""The one redactor: every form of a secret is hidden, by name, shape and command; what is none stays readable."""

from __future__ import annotations

import json
import time

import pytest

from envguard.acquire.seam.collector.redaction import is_secret_name, is_secret_variable, masked, redact, spans
from tests.planted import FORMS

WORD = "Zq7Planted9Xv"


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_every_form_is_hidden_in_a_text_and_in_bytes(form: str) -> None:
    text = form.format(WORD)
    assert WORD not in redact(text)
    assert WORD.encode() not in masked(text.encode())
    assert len(masked(text.encode())) == len(text.encode())
    assert WORD not in redact(f"before\n{text}\nafter")
    assert redact(f"before\n{text}\nafter").startswith("before\n")


@pytest.mark.parametrize(
    "text",
    [
        "pad_token: <pad>", "eos_token_id: 2", "max_tokens=131072", "--max-tokens 4096", "token_budget: 49152",
        "tokens_per_sec=21.5", "tokens/s: 21500", "tok_s", "--tokenizer Qwen/x", "torch_key: abcdef", "cache_key=xx",
        "google-auth==2.40.1", "Requires-Dist: google-auth (>=2)", "--use-auth-token true", "compass: north",
        "monkey: x", "first_pass: 0.5", "PWD=/root", "PATH=/usr/bin", "bypass=1", "--token $HF_TOKEN",
        "--token ${HF_TOKEN}", "num_key_value_heads=8", '"name": "requests-oauth"', "author: Ada", "pattern: x",
        "tests passed: 3", "git@github.com:org/x.git", "uv login", "pip install tokenizers==0.21 --no-deps",
        '{"auth": true, "token": null, "key": 3}',
    ],
)  # fmt: skip
def test_settings_and_words_of_the_field_stay(text: str) -> None:
    assert redact(text) == text
    data = text.encode()
    assert masked(data) is data


@pytest.mark.parametrize("name", ["TORCH_HUB_PASS", "DB_PWD", "AWS_ACCESS_KEY_ID", "HF_TOKEN", "UV_INDEX_X_PASSWORD",
                                  "MY_PAT", "NCCL_AUTH_X"])  # fmt: skip
def test_variables_whose_value_is_not_taken(name: str) -> None:
    assert is_secret_variable(name)


@pytest.mark.parametrize("name", ["PWD", "OLDPWD", "PATH", "TOKENIZERS_PARALLELISM", "CUDA_VISIBLE_DEVICES"])
def test_variables_that_are_no_secrets(name: str) -> None:
    assert not is_secret_variable(name)


def test_a_name_is_judged_by_its_last_part() -> None:
    assert is_secret_name("clientSecret")
    assert is_secret_name("wandb.api_key")
    assert not is_secret_name("secret_santa_rate")


def test_json_stays_json() -> None:
    text = json.dumps(
        {"token": None, "auth": True, "tokens": 12, "api_key": "abcdefgh", "list": ["--token", "abcdefgh"]}
    )
    hidden = json.loads(masked(text.encode()))
    assert hidden == {"token": None, "auth": True, "tokens": 12, "api_key": "*" * 8, "list": ["--token", "*" * 8]}


@pytest.mark.parametrize(
    "piece",
    ["a", "a-", "://a", "key=", "x-", "api", '"', "\\", "mysql ", "echo ", "login ", "-u a:", "token: ", "\n",
     "--token ", "eyJ", "a.", "key\n", '"key": ', "auth ", "@", "://@", " ", "sig=&", "|", "token=$a,", "pass=/x,",
     "set -x "],
)  # fmt: skip
def test_a_megabyte_of_anything_takes_linear_time(piece: str) -> None:
    half = (piece * (1 << 20))[: 1 << 19].encode()
    began = time.process_time()
    spans(half * 2)
    assert time.process_time() - began < 5
