"""Secrets of known shapes do not leave; what only looks a little like one stays. All of them are made up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.evidence.masking import mask

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N"

SECRETS = {
    'DB_PASSWORD="two words here"': "words",
    "--password 'hunter ten' --epochs 3": "ten'",
    "WANDB_API_KEY 0123456789abcdef0123456789abcdef01234567": "0123456789abcdef",
    "wandb: 0123456789abcdef0123456789abcdef01234567": "0123456789abcdef",
    "MIIEpAIBAAKCAQEA1c7+9z5Pad7OejecsQ0buoIJqMhmcMpFVJtWoMhmcMpFVJtW12345678": "MIIEpAIB",
    "token hf_" + "AbCdEfGhIjKlMnOpQrStUvWx": "hf_AbCd",
    "ghp_" + "0123456789abcdefghij0123456789abcdef": "0123456789abcdef",
    "github_pat_" + "11AAAAAAA0aaaaaaaaaaaa_bbbbbbbbbbbb": "aaaaaaaaaaaa",
    "key AKIA" + "IOSFODNN7EXAMPLE": "IOSFODNN7",
    "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY": "wJalr",
    "OPENAI_API_KEY=sk-" + "proj-abcdefghijklmnopqrstuvwxyz012345": "abcdefghij",
    "xoxb-" + "123456789012-abcdefghijkl": "abcdefghijkl",
    f"cookie {JWT}": "dozjgNryP4J3",
    "git clone https://alice:hunter2hunter@git.example.org/x.git": "hunter2",
    "postgresql://u:p4ssw0rd@db/x": "p4ssw0rd",
    "https://0123456789abcdef0123456789@github.com/x": "0123456789abcdef",
    "Authorization: Bearer abcdef0123456789abcdef": "abcdef0123456789",
    "'Authorization': 'Basic dXNlcjpwYXNzd29yZA=='": "dXNlcjpw",
    "train.py --token abcdef123456 --epochs 3": "abcdef123456",
    "train.py --hf-token=abcdef123456": "abcdef123456",
    "MYSQL_PASSWORD=correcthorse x": "correcthorse",
    '{"password": "correcthorse"}': "correcthorse",
    "wandb: using API key 0123456789abcdef0123456789abcdef01234567": "0123456789abcdef",
    "WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567": "0123456789abcdef",
    "-----BEGIN RSA PRIVATE KEY-----MIIEowIBAAKCAQEA0123456789-----END RSA PRIVATE KEY-----": "MIIEow",
    "MIIEowIBAAKCAQEA7bq5r2k0pQfXW0nYz8fJ3H1qE9s4tUvWxYzAbCdEfGhIjKlM": "MIIEow",
}

HARMLESS = [
    'JSONDecodeError: unexpected token "abc def" at 3',
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "commit 3b1ae44198d698c973c7ced5dc11a0fd996623d8",
    "GPU-5f1c0a2e-1b2c-3d4e-5f60-718293a4b5c6 has fallen off the bus",
    "/home/alice/.cache/huggingface/hub/models--meta-llama--Llama-3.1-8B/snapshots/0123456789abcdef0123/model.safetensors",
    "tokens/s 123456 token: 5123 max_new_tokens=2048",
    "KeyError: 'password'",
    "pad_token=None eos_token: <|endoftext|>",
    "tcp://10.0.0.1:29500",
    "http://node1:29500/rendezvous",
    "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "ValueError: the tokenizer has no chat template",
    "[rank3]:[E1115 06:50:15.123456789 ProcessGroupNCCL.cpp:607] [Rank 3] Watchdog caught collective operation timeout",
    "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
]


@pytest.mark.parametrize("text", SECRETS)
def test_a_secret_is_masked(text: str) -> None:
    shown = mask(text)
    assert SECRETS[text] not in shown
    assert "***" in shown
    assert mask(shown) == shown


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_no_secret_stays(text: str) -> None:
    assert mask(text) == text


def test_what_stands_around_a_secret_stays() -> None:
    assert mask("OSError: 401 for https://bob:tiger99@hub.example/x (rank 3)") == (
        "OSError: 401 for https://bob:***@hub.example/x (rank 3)"
    )
    assert mask("train.py --token abcdef123456 --epochs 3") == "train.py --token *** --epochs 3"


@given(st.text(max_size=200))
def test_masking_twice_changes_nothing_more(text: str) -> None:
    assert mask(mask(text)) == mask(text)
