"""Chat templates that loop, fill the memory or write without end are refused, and all others cost little."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from recovery.models import template_limits
from recovery.models.chat_encoding import ChatEncoder
from recovery.models.loading import ModelSpec, load, load_encoder
from recovery.models.template_limits import TemplateTooLong
from tests.support import tiny

MANY = "{% for a in range(99999) %}"
THREE_LOOPS = f"{MANY * 3}{{% endfor %}}{{% endfor %}}{{% endfor %}}"
ENDLESS = [
    (THREE_LOOPS, "time"),
    ("{{ 10 ** (10 ** 10) }}", "time|memory"),
    ("{{ 'x' * 10 ** 10 }}", "memory"),
    ("{{ 'x' | center(10 ** 10) }}", "memory"),
    ("{{ '%09999999999d' | format(1) }}", "memory"),
    ("{{ 'x' * 3000000 }}", "writes"),
    (f"{MANY}{{{{ 'x' * 100 }}}}{{% endfor %}}", "writes"),
]


def waiting(part: str) -> str:
    """Return a template that the trial finds ordinary: it does this for one message only."""
    return f"{{% if messages[0].content == 'now' %}}{part}{{% endif %}}{tiny.TEMPLATE}"


@pytest.fixture
def little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_limits, "SECONDS", 1.0)


@pytest.mark.usefixtures("little_time")
@pytest.mark.parametrize(("template", "reason"), ENDLESS)
def test_a_template_without_end_is_refused_in_one_line(template: str, reason: str) -> None:
    with pytest.raises(TemplateTooLong, match=rf"its chat template .*({reason}).*: read it") as refused:
        ChatEncoder(tiny.tokenizer(chat_template=template))
    assert "\n" not in str(refused.value)


def test_a_template_of_a_directory_is_refused_by_its_name(tmp_path: Path) -> None:
    model = tiny.save(tmp_path / "model")
    (model / "chat_template.jinja").write_text("{{ 'x' * 3000000 }}")
    for use in (load, load_encoder):
        with pytest.raises(TemplateTooLong, match=rf"^{model}: its chat template writes more"):
            use(ModelSpec(str(model)))


def test_models_with_one_template_share_a_trial_and_a_refusal_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    run = subprocess.run

    def counted(*words: Any, **options: Any) -> Any:
        started.append(words)
        return run(*words, **options)

    monkeypatch.setattr(subprocess, "run", counted)
    for name, mark, trials in (("a", "fine", 1), ("b", "fine", 1), ("c", "other", 2)):
        model = tiny.save(tmp_path / name)
        (model / "chat_template.jinja").write_text(f"{{# {mark} #}}{tiny.TEMPLATE}")
        load_encoder(ModelSpec(str(model)))
        assert len(started) == trials
    (model / "chat_template.jinja").write_text("{{ 'x' * 3000000 }}")
    for trials in (3, 4):
        with pytest.raises(TemplateTooLong, match=rf"^{model}: "):
            load_encoder(ModelSpec(str(model)))
        assert len(started) == trials


@pytest.mark.usefixtures("little_time")
@pytest.mark.parametrize(
    ("part", "reason"), [(THREE_LOOPS, "time"), (f"{MANY}{{{{ 'x' * 100 }}}}{{% endfor %}}", "writes")]
)
def test_a_template_that_waits_for_a_message_is_stopped(part: str, reason: str) -> None:
    encoder = ChatEncoder(tiny.tokenizer(chat_template=waiting(part)))
    whole = encoder.prompt_ids([{"role": "user", "content": "Say a word."}])
    with pytest.raises(TemplateTooLong, match=reason):
        encoder.prompt_ids([{"role": "user", "content": "now"}])
    assert encoder.prompt_ids([{"role": "user", "content": "Say a word."}]) == whole


@pytest.mark.usefixtures("little_time")
def test_a_template_is_stopped_in_any_thread() -> None:
    encoder = ChatEncoder(tiny.tokenizer(chat_template=waiting(THREE_LOOPS)))
    ends: list[type[BaseException]] = []

    def work() -> None:
        try:
            encoder.prompt_ids([{"role": "user", "content": "now"}])
        except TemplateTooLong as error:
            ends.append(type(error))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert ends == [TemplateTooLong]


def test_long_dialogues_are_rendered_and_the_trace_function_is_kept() -> None:
    encoder = ChatEncoder(tiny.tokenizer())
    before = sys.gettrace()
    long = [{"role": "user", "content": "a" * 1_200_000}]
    many = [{"role": ("user", "assistant")[n % 2], "content": "word " * 20} for n in range(1001)]
    assert len(encoder.prompt_ids(long)) > 1_200_000
    assert len(encoder.prompt_ids(many)) > 100 * 1001
    assert sys.gettrace() is before
