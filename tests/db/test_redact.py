"""Secrets are hidden wherever text is stored or shown; what only looks like one is kept."""

from __future__ import annotations

import json
import time
from collections import Counter
from types import SimpleNamespace

import pytest

from db.redact import HIDDEN, differences, redact, redact_error, redact_text

SECRETS = {
    "hub": {"token": "hf_abcdefghijklmnop", "api_key": "x", "url": "https://me:pw@host/x?token=abc&a=1"},
    "tokens_per_step": 4096,
    "row_tokens": "256",
    "password": "",
    "args": ["--key", "sk-abcdefgh12345678"],
}


def test_secrets_are_never_shown_and_counts_of_tokens_are() -> None:
    shown = redact(SECRETS)
    assert shown["hub"] == {
        "token": HIDDEN,
        "api_key": HIDDEN,
        "url": f"https://{HIDDEN}@host/x?token={HIDDEN}&a=1",
    }
    assert shown["tokens_per_step"] == 4096 and shown["row_tokens"] == "256" and shown["password"] == ""
    assert shown["args"] == ["--key", HIDDEN]
    assert redact_text("postgresql://u:secret@host/db") == f"postgresql://{HIDDEN}@host/db"


def test_differences_tell_that_a_secret_changed_but_not_what_it_is() -> None:
    before, after = {"a": {"token": "one", "b": 1}}, {"a": {"token": "two", "b": 1, "c": 2}}
    assert differences(before, after) == [("a.c", None, 2), ("a.token", HIDDEN, HIDDEN)]
    assert differences(before, before) == []


SECRET = "Zq9-longSecret_7"


@pytest.mark.parametrize(
    "said",
    [
        f"OPENAI_KEY={SECRET}",
        f"export OPENAI_KEY='{SECRET}'",
        f"Authorization: Bearer {SECRET}",
        f"authorization=bearer {SECRET}",
        f"Authorization: Basic {SECRET}",
        f"Bearer {SECRET}",
        f"--api-key {SECRET}".replace(" ", "="),
        f'{{"api_key":"{SECRET}"}}',
        f'{{"password": "{SECRET} and more {SECRET}"}}',
        f"password: {SECRET}",
        f'cmd="run --password={SECRET}"',
        f"apiKey={SECRET}",
        f"postgresql://ann:{SECRET}@host/db",
        f"postgresql://:{SECRET}@host/db",
        f"postgresql://ann:with@{SECRET}@host/db",
        f"postgresql://ann:with/{SECRET}@host/db",
        f"postgresql://ann:%40{SECRET}@host/db",
        f"postgresql://host/db?user=ann&password={SECRET}",
        f"postgresql://host/db?p%61ssword={SECRET}",
        f"postgresql%3A%2F%2Fann%3A{SECRET}%40host",
        f"https://host/x?X-Amz-Signature={SECRET}",
        f"Invalid header value b'Bearer {SECRET}\\n{SECRET}'",
        f"Bearer {SECRET}\n{SECRET}",
        f"host=h user=u password={SECRET}",
        f"postgresql://ann:my {SECRET}@host/db refused it",
        f"postgresql+psycopg://ann:a b/c {SECRET}@host:5432/db",
        f"postgresql://ann:12/34{SECRET}@host/db",
        f"redis://:12/{SECRET}@host:6379/0",
        f"rediss://:12/{SECRET}@host:6379/0",
        f"amqps://ann:12/{SECRET}@host:5671/queue",
        f"password='it\\'s {SECRET}' host=h",
        f'{{"password": "a \\" {SECRET}"}}',
        f"password=my\\ {SECRET} host=h",
    ],
)
def test_a_secret_is_hidden_in_text(said: str) -> None:
    shown = redact_text(said)
    assert SECRET not in shown and HIDDEN in shown
    assert redact_text(shown) == shown


@pytest.mark.parametrize(
    "said",
    [
        "eos_token: </s>, max_tokens=256, tokens: 12, sort_key=name",
        "Token: the smallest unit of text",
        "prompt 3 has 9,001 tokens: shorten it",
        "the ring bearer said no",
        "https://host:8080/@ann/post and https://host/x?page=2",
        "a key = value store; the author: Ann",
        "step 3: loss 0.2 (best: 0.1)",
        "http://host:8080 is up, ask ann@example.org",
        "open http://host:8080, or copy it with scp ann@host/x",
        "see https://host: it needs a login, then mail ann@example.org",
        "postgresql://host:5432/db refused ann@example.org",
        "postgresql://host:5432/db?application_name=ann@example.org",
        "model://org:main and git@example.org:org/name",
    ],
)
def test_ordinary_text_is_kept(said: str) -> None:
    assert redact_text(said) == said


def test_settings_are_hidden_by_their_names() -> None:
    given = {
        "OPENAI_KEY": "abc",
        "apiKey": "abc",
        "password": 12345,
        "argv": ["--hub-token", "abc", "--tokens", "5"],
        "tokens": 5,
        "key": "midtrain",
        "sk-abcdefgh12345678": 1,
    }
    shown = redact(given)
    assert shown == {
        "OPENAI_KEY": HIDDEN,
        "apiKey": HIDDEN,
        "password": HIDDEN,
        "argv": ["--hub-token", HIDDEN, "--tokens", "5"],
        "tokens": 5,
        "key": "midtrain",
        HIDDEN: 1,
    }


def test_the_column_of_tokens_is_shown_and_hides_only_what_it_spells() -> None:
    """SQLite returns it as text."""
    kept = '{"pieces": ["Use", " it"],  "ids": [1, 2]}'
    spelled = json.dumps({"pieces": ["Use", " hf_abc", "defghijkl"], "ids": [1, 2, 3]})
    shown = redact([{"tokens": kept, "token": "abc"}, {"tokens": spelled}])
    assert shown[0] == {"tokens": kept, "token": HIDDEN}
    assert json.loads(shown[1]["tokens"]) == {"pieces": ["Use", HIDDEN, HIDDEN], "ids": [1, None, None]}


@pytest.mark.parametrize("text", ['["pieces"', '"pieces" are words', '{"pieces":' + "[" * 100_000])
def test_what_only_looks_like_tokens_is_text(text: str) -> None:
    assert redact({"response": text}) == {"response": text}


def test_a_likely_token_that_looks_like_a_flag_keeps_its_number() -> None:
    top = [["-token", -0.1], ["-auth", -2.5], ["--password", -3.0], ["--api-key", "abc"]]
    assert redact({"teacher_top": [top]}) == {"teacher_top": [[*top[:3], ["--api-key", HIDDEN]]]}


def test_secrets_of_the_environment_are_hidden_in_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SERVICE_TOKEN", "plain words only")
    monkeypatch.setenv("SHORT_TOKEN", "no")
    assert redact_error("refused: plain words only, no") == f"refused: {HIDDEN}, no"


def test_paths_in_errors_stay_readable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PWD", "/home/me/corpora")
    monkeypatch.setenv("OLDPWD", "/home/me/models")
    for line in (
        "/home/me/corpora/qa.jsonl:1: not JSON",
        "/home/me/models/tiny: no such model directory",
        "/etc/passwd: no such model directory",
    ):
        assert redact_error(line) == line
    assert redact_error("passwd: hunter2") == f"passwd: {HIDDEN}"


@pytest.mark.parametrize(
    "piece",
    [
        "a=",
        "://a:",
        "://a:b c",
        "redis://a:1/",
        "a=\\",
        "Bearer ",
        '"',
        "?a",
        "key:",
        "--a",
        "%3a%2f%2f",
        "eyJ-",
        " ",
    ],
)
def test_any_text_is_read_in_time_in_proportion(piece: str) -> None:
    begun = time.process_time()
    redact_text(piece * 20_000)
    assert time.process_time() - begun < 5


def test_a_signed_token_with_a_long_head_is_hidden() -> None:
    token = f"eyJ{'a' * 3000}.{'b' * 9000}.c"
    assert redact_text(f"got {token} back") == f"got {HIDDEN} back"


def test_a_secret_that_tokens_spell_together_is_hidden() -> None:
    pieces = ["Use", " h", "f_abc", "defgh", "ijkl", " now", "."]
    top = [[[piece, -0.1]] for piece in pieces]
    shown = redact({"pieces": pieces, "ids": [*range(7)], "student_top": top, "teacher_top": None})
    assert shown["pieces"] == ["Use", HIDDEN, HIDDEN, HIDDEN, HIDDEN, " now", "."]
    assert shown["ids"] == [0, None, None, None, None, 5, 6] and shown["teacher_top"] is None
    assert [bool(entries) for entries in shown["student_top"]] == [True, *[False] * 4, True, True]
    harmless = {"pieces": ["a", "b"], "ids": [1, 2]}
    assert redact(harmless) == harmless


def test_a_token_that_looks_like_a_flag_hides_no_next_one() -> None:
    pieces = ["multi", "-token", " prediction", " and", "--api-key", " names"]
    rollout = {"pieces": pieces, "ids": [*range(6)]}
    assert redact(rollout) == rollout and redact(json.dumps(rollout)) == json.dumps(rollout)
    assert redact({"argv": pieces})["argv"][2] == HIDDEN


def test_the_names_of_columns_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of an export's time went into them. Long texts are not kept in memory."""
    seen = Counter[str]()

    def look(_: str, text: str) -> str:
        seen[text] += 1
        return text

    monkeypatch.setattr("db.redact.KNOWN_SHAPES", SimpleNamespace(sub=look))
    long = "a column " * 12
    for _ in range(3):
        redact({"an unusual column": 1, long: 2})
    assert seen == {"an unusual column": 1, long: 3}
