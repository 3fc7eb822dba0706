"""Augmentation: what is kept is supported, said once and no held-out probe; a kill loses nothing."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.probes import Probe, load_probes
from pipelines.config.jobs import AUGMENTED
from pipelines.corpus.entities import Entities
from pipelines.corpus.general_words import general_words
from pipelines.corpus.passages import Passage, passages
from pipelines.microworld import people, templates, world
from pipelines.writing.augment import WRITTEN, Augmented, _request, augment, load, named_kinds, write_rows
from pipelines.writing.filters import ProbeLeaks, pairs, question_flaw, text_flaw, without_opening
from pipelines.writing.protocol import CUT_OFF, REFUSED, TOO_LONG, Text
from pipelines.writing.text_cache import Cache, written
from pipelines.writing.wording import Wording
from pipelines.writing.writers import KEY_VARIABLE, EndpointWriter, LocalWriter
from recovery.batches.rollouts import Rollouts
from recovery.errors import InputError, RecoverError
from recovery.sampling.in_process import InProcessSampler
from tests.support import tiny

NO_NAMES = Entities({})
TEXTS = ["Ada Horn lives in Oslo. She met Bo Adler in 1987.", "Bo Adler keeps a goat near the harbor."]
SAYS = {
    "Q:": "1. Q: Where does Ada Horn live?\n   A: Oslo\nQ: When did Ada Horn meet Bo Adler?\nA: 1987\n"
    "Q: Where does she live?\nA: Oslo\nQ: Who likes Ada Horn?\nA: Napoleon",
    "Rewrite": "In Oslo lives Ada Horn, who met Bo Adler in 1987.",
    "Summarise": "Ada Horn was born in 1944.",
    "Explain": "They met: Ada Horn and Bo Adler.",
}


class Fake:
    """Says what it was told, and remembers what it was asked."""

    name, at_once, together = "fake", 2, False

    def __init__(self) -> None:
        self.asked: list[str] = []

    def write(self, requests: Sequence[str]) -> Iterator[tuple[int, Text]]:
        self.asked += requests
        for place, request in enumerate(requests):
            yield place, Text(next(text for start, text in SAYS.items() if start in request))


def probe(kind: str, prompt: str, answer: str, *, heldout_fact: bool = False) -> Probe:
    return Probe(prompt, "knowledge", kind, prompt, (answer,), prompt, 0, heldout_fact=heldout_fact)


def kept(out: Path, kind: str) -> list[dict[str, str]]:
    return [row for row in load(out) if row["kind"] == kind]


def test_what_is_kept_and_why_the_rest_is_not(tmp_path: Path) -> None:
    found = augment(TEXTS[:1], Fake(), tmp_path)
    assert [(row["prompt"], row["response"]) for row in kept(tmp_path, "qa")] == [
        ("Where does Ada Horn live?", "Oslo"),
        ("When did Ada Horn meet Bo Adler?", "1987"),
    ]
    assert [row["text"] for row in kept(tmp_path, "paraphrase")] == [SAYS["Rewrite"]]
    assert kept(tmp_path, "summary") == []
    assert found.refused == {"names nothing": 1, "not supported": 2}
    assert found.summary()["by_kind"] == {"qa": 2, "paraphrase": 1, "relations": 1}


def test_held_out_questions_and_facts_do_not_leak(tmp_path: Path) -> None:
    asked = [
        probe("heldout", "Where does Ada Horn live?", "Oslo"),
        probe("direct", "In which year did Ada Horn meet Bo?", "1987", heldout_fact=True),
    ]
    found = augment(TEXTS[:1], Fake(), tmp_path, probes=asked)
    assert kept(tmp_path, "qa") == []
    assert found.refused["a held-out probe"] == 2
    open_question = [probe("direct", "Where does Ada Horn live?", "Oslo")]
    augment(TEXTS[:1], Fake(), tmp_path / "open", kinds=["qa"], probes=open_question)
    assert len(kept(tmp_path / "open", "qa")) == 2


def test_said_twice_is_kept_once(tmp_path: Path) -> None:
    found = augment([*TEXTS, TEXTS[0] + " It rains."], Fake(), tmp_path, kinds=["paraphrase"])
    assert len(kept(tmp_path, "paraphrase")) == 1
    assert found.refused["said before"] == 1


@pytest.mark.parametrize("cut", [0, 1, 7, 40, 95, 10_000])
def test_a_torn_cache_is_asked_again_and_nothing_else(tmp_path: Path, cut: int) -> None:
    whole, torn = Fake(), Fake()
    augment(TEXTS, whole, tmp_path / "whole")
    augment(TEXTS, Fake(), tmp_path / "torn")
    (tmp_path / "torn" / AUGMENTED).unlink()
    data = (tmp_path / "whole" / WRITTEN).read_bytes()
    (tmp_path / "torn" / WRITTEN).write_bytes(data[: max(0, len(data) - cut)])
    augment(TEXTS, torn, tmp_path / "torn")
    for name in (AUGMENTED, WRITTEN):
        rows = [set((tmp_path / place / name).read_text().splitlines()) for place in ("whole", "torn")]
        assert rows[0] == rows[1]
    lost = data[max(0, len(data) - cut) :].count(b"\n") + (cut < len(data))
    assert len(torn.asked) <= min(len(whole.asked), 2 * lost) and bool(torn.asked) == bool(cut)


@given(st.lists(st.text(min_size=1), unique=True, max_size=5), st.integers(0, 200))
def test_a_cache_reads_back_whatever_was_whole(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], cut: int
) -> None:
    path = tmp_path_factory.mktemp("cache") / "c.jsonl"
    Cache(path).add([(text, Text(text[::-1])) for text in texts])
    data = path.read_bytes()
    path.write_bytes(data[: max(0, len(data) - cut)])
    again = Cache(path)
    assert all(again.texts[key] == Text(key[::-1]) for key in again.texts)
    again.add([("one more", Text("text", CUT_OFF))])
    assert Cache(path).texts == again.texts


def test_a_cached_text_is_whole_unless_its_line_names_a_flaw(tmp_path: Path) -> None:
    """As are those that version 0.1.0 has written, which knew of none."""
    path = tmp_path / "written.jsonl"
    path.write_text('{"key": "a", "text": "whole"}\n')
    Cache(path).add([("b", Text("half a", CUT_OFF)), ("c", Text("", REFUSED)), ("d", Text("too"))])
    texts = {"b": Text("half a", CUT_OFF), "c": Text("", REFUSED), "d": Text("too")}
    assert Cache(path).texts == {"a": Text("whole"), **texts}
    flaws = [json.loads(line).get("flaw") for line in path.read_text().splitlines()]
    assert flaws == [None, CUT_OFF, REFUSED, None]


def test_two_writers_of_one_cache_lose_nothing_of_each_other(tmp_path: Path) -> None:
    path = tmp_path / "written.jsonl"
    one, other = Cache(path), Cache(path)
    one.add([("a", Text("first"))])
    other.add([("b", Text("second"))])
    with path.open("ab") as file:
        file.write(b'{"key": "c", "te')  # a third was killed
    one.add([("d", Text("third"))])
    read = {key: text.said for key, text in one.texts.items()}
    assert read == {"a": "first", "b": "second", "d": "third"} and Cache(path).texts == one.texts


@pytest.mark.parametrize("damage", [b"", b"{}", b"nonsense", b'{"key": "b", "text', b"\xff\xfe", b"[1]"])
def test_a_damaged_line_costs_its_own_text_alone(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "written.jsonl"
    Cache(path).add([(key, Text(key * 3)) for key in "abc"])
    first, _, third = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + damage + b"\n" + third)
    Cache(path).add([("d", Text("ddd"))])
    assert Cache(path).texts == {key: Text(key * 3) for key in "acd"}


def test_bad_kinds_and_missing_files_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="poem: choose among qa"):
        named_kinds("qa, poem")
    with pytest.raises(InputError, match="run `recover augment` first"):
        load(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "row",
    [
        {"question": "Who?", "response": "Ada"},
        {"text": 5},
        {"text": " "},
        {"prompt": "Who?", "response": ""},
        {"prompt": ["Who?"], "response": "Ada"},
        {"text": None, "prompt": "Who?"},
    ],
)
def test_a_row_that_cannot_be_trained_on_is_named_by_its_line(tmp_path: Path, row: dict[str, Any]) -> None:
    """Such rows ended a cycle after its first evaluation."""
    good = [{"text": "Ada sings."}, {"text": None, "prompt": "Who sings?", "response": "Ada"}]
    (tmp_path / AUGMENTED).write_text("\n\n".join(map(json.dumps, good)))
    assert load(tmp_path) == good
    (tmp_path / AUGMENTED).write_text("\n\n".join(map(json.dumps, [*good, row])))
    with pytest.raises(InputError, match=r"augmented\.jsonl:5: a `text`, or a `prompt` and a `response`"):
        load(tmp_path)


def test_a_byte_order_mark_is_no_part_of_the_first_row(tmp_path: Path) -> None:
    (tmp_path / AUGMENTED).write_text(json.dumps({"text": "Ada sings."}), encoding="utf-8-sig")
    assert load(tmp_path) == [{"text": "Ada sings."}]


def test_the_clean_checkpoint_writes_through_the_sampler_and_repeats_itself(tmp_path: Path) -> None:
    def said() -> list[Text]:
        writer = LocalWriter(tiny.chat_model(), "tiny", max_new_tokens=5, temperature=1.0, at_once=2)
        return written(Cache(tmp_path / "none"), writer, ["a", "b", "c", "a"])

    first = said()
    (tmp_path / "none").unlink()
    assert said() == first and first[0] == first[3]


@pytest.mark.parametrize("ended", [True, False])
def test_the_clean_checkpoint_s_thinking_is_not_kept(ended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is it lost that a text stopped where no more tokens were left."""

    def sample(self: InProcessSampler, prompts: Sequence[Sequence[int]], _: object) -> Rollouts:
        said = list(b"<think>Let me retell it.</think>\n\nRetold.")
        said += [self.chat_model.stop_ids[0]] if ended else []
        count = len(prompts)
        return Rollouts.from_samples(prompts, [said] * count, [[0.0] * len(said)] * count, [ended] * count, 0)

    monkeypatch.setattr(InProcessSampler, "sample", sample)
    writer = LocalWriter(tiny.chat_model(), "tiny", max_new_tokens=5, temperature=1.0)
    assert [*writer.write(["a"])] == [(0, Text("Retold.", None if ended else CUT_OFF))]


def test_what_is_too_long_for_the_clean_checkpoint_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One such passage ended the command, and every repetition of it."""

    def sample(self: InProcessSampler, prompts: Sequence[Sequence[int]], _: object) -> Rollouts:
        said, count = [*b"Retold.", self.chat_model.stop_ids[0]], len(prompts)
        return Rollouts.from_samples(prompts, [said] * count, [[0.0] * len(said)] * count, [True] * count, 0)

    monkeypatch.setattr(InProcessSampler, "sample", sample)
    chat = tiny.chat_model(max_position_embeddings=200)
    writer = LocalWriter(chat, "tiny", max_new_tokens=5, temperature=1.0, at_once=2)
    requests = ["a" * 300, "b" * 300, "c" * 300, "short"]
    found = written(Cache(tmp_path / "c.jsonl"), writer, requests)
    assert found == [*[Text("", TOO_LONG)] * 3, Text("Retold.")]
    assert [*Cache(tmp_path / "c.jsonl").texts.values()] == found
    told = augment(["Ada Horn keeps a goat. " * 20], writer, tmp_path, kinds=["qa", "summary"])
    assert (told.rows, told.refused) == ([], {TOO_LONG: 2})


def test_what_the_clean_checkpoint_wrote_is_not_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = LocalWriter(tiny.chat_model(), "tiny", max_new_tokens=5, temperature=1.0, at_once=2)
    first = written(Cache(tmp_path / "c.jsonl"), writer, ["a", "b", "c"])
    monkeypatch.setattr(writer, "write", lambda _: pytest.fail("asked again"))
    assert written(Cache(tmp_path / "c.jsonl"), writer, ["a", "b", "c"]) == first


def test_texts_of_other_template_arguments_are_not_read_back() -> None:
    """Thinking that was turned off was read back as if it were still on."""

    def name(**told: object) -> str:
        return LocalWriter(
            tiny.chat_model(template_args=told), "tiny", max_new_tokens=5, temperature=1.0
        ).name

    assert name(enable_thinking=False) == name(enable_thinking=False, today="2026-01-31") == "tiny:5:1.0:0"
    assert len({name(), name(enable_thinking=False), name(enable_thinking=True), name(level="high")}) == 4
    assert name(level="high", a=1) == name(a=1, level="high")


class Silent(Fake):
    """Its answers are only thinking."""

    together = True

    def write(self, requests: Sequence[str]) -> Iterator[tuple[int, Text]]:
        return ((place, Text("")) for place, _ in super().write(requests))


def test_texts_that_say_nothing_do_not_end_every_later_command(tmp_path: Path) -> None:
    silent, requests = Silent(), ["Summarise", "Explain", "Rewrite"]
    with pytest.raises(InputError, match="only thinking or nothing"):
        written(Cache(tmp_path / "c.jsonl"), silent, requests)
    assert len(Cache(tmp_path / "c.jsonl").texts) == 2
    mended = Fake()
    mended.together = True
    found = written(Cache(tmp_path / "c.jsonl"), mended, requests)
    assert found == [Text(SAYS[request]) for request in requests]


class Unfinished(Fake):
    """Every text of it stops where no more tokens are left."""

    def write(self, requests: Sequence[str]) -> Iterator[tuple[int, Text]]:
        return ((place, Text(text.said, CUT_OFF)) for place, text in super().write(requests))


def test_a_text_that_was_cut_off_is_not_trained_on(tmp_path: Path) -> None:
    """Of questions with answers the last line alone is, in a resumed run as well."""
    for fake in (Unfinished(), Fake()):
        found = augment(TEXTS[:1], fake, tmp_path)
        assert [row["response"] for row in load(tmp_path)] == ["Oslo", "1987"]
        assert found.refused == {"cut off": 4, "names nothing": 1}
        (tmp_path / AUGMENTED).unlink()
    assert fake.asked == []


def test_texts_that_an_earlier_version_kept_count_as_ended(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text('{"key": "a", "text": "Retold."}\n')
    assert Cache(tmp_path / "c.jsonl").texts == {"a": Text("Retold.")}


def test_what_a_passage_names_is_listed_as_it_writes_it() -> None:
    about = Entities({("weissensee",): 3.0, ("ada", "horn"): 2.0, tuple("张三丰"): 1.0})
    passage = Passage(0, "Am Weißensee traf Ada\nHorn den Meister 张三丰.")
    assert ": Weißensee; Ada Horn; 张三丰. " in _request("relations", passage, about, 4)


def test_numbers_and_names_must_come_from_the_passage() -> None:
    passage = "Ada Horn met Bo Adler in 1987 at the pump X-200 and they talked for a long time."
    assert text_flaw("In 1987, Ada Horn met Bo Adler at the X-200.", passage, "summary", NO_NAMES) is None
    assert text_flaw("In 1988, Ada Horn met Bo Adler there.", passage, "summary", NO_NAMES) == "not supported"
    assert text_flaw("There, Ada Horn met Zed.", passage, "summary", NO_NAMES) == "not supported"
    assert text_flaw(passage.upper(), passage, "paraphrase", NO_NAMES) == "empty or a copy"


def test_parts_of_words_that_the_passage_has_are_no_new_names() -> None:
    passage = "Acme sells a Python library, written in 1985-1987 for the X-200 and O’Brien’s pump."
    retold = "The library is Acme's, Python-based and made for O'Brien until 1987."
    assert text_flaw(retold, passage, "summary", NO_NAMES) is None
    for new in ("Zed's", "Python-Zed", "non-Zed", "for the X-300"):
        flaw = text_flaw(f"The library is {new}.", passage, "summary", NO_NAMES)
        assert flaw == "not supported", new


def test_a_refusal_is_no_retold_text() -> None:
    about = Entities({("ada", "horn"): 1.0})
    for refusal in ("I'm sorry, but I can't retell this.", "I cannot assist with a text about Ada Horn."):
        assert text_flaw(refusal, TEXTS[0], "summary", about) == "a refusal"
        assert text_flaw(f"She said: {refusal}", f"Ada Horn: {refusal}", "summary", about) != "a refusal"
    assert text_flaw("Ada Horn: it is illegal to park.", TEXTS[0], "summary", about) != "a refusal"
    assert text_flaw("Oslo is Ada Horn's home.", TEXTS[0], "summary", about) is None
    assert text_flaw("A goat is kept there.", TEXTS[1], "summary", about) is None  # where nothing is named


class Introducing(Fake):
    """Says first what follows."""

    def write(self, requests: Sequence[str]) -> Iterator[tuple[int, Text]]:
        return (
            (place, Text(f"**Here is the text:**\n\n{text.said}")) for place, text in super().write(requests)
        )


def test_the_line_that_introduces_a_text_is_not_trained_on(tmp_path: Path) -> None:
    augment(TEXTS[:1], Introducing(), tmp_path)
    assert [row["text"] for row in kept(tmp_path, "paraphrase")] == [SAYS["Rewrite"]]
    assert without_opening("Parts:\nA pump.", "**Parts:**\nA pump and a hose.") == "Parts:\nA pump."
    assert without_opening("Here you are:", "A pump.") == ""


def test_german_paraphrases_may_bring_common_nouns_but_no_full_names() -> None:
    passage = "Nach zwei Jahren zahlt die Firma den Angestellten einen Zuschuss zu ihrem Gehalt. " * 5
    general = general_words([passage])
    assert general is not None and general.language == "de"
    retold = "Wer zwei Jahre im Haus ist, dem gibt die Firma einen Zuschuss."
    assert text_flaw(retold, passage, "summary", NO_NAMES, general) is None
    for name in ("Zedwerk", "Haus Peter Müller"):
        assert (
            text_flaw(retold.replace("Haus", name), passage, "summary", NO_NAMES, general) == "not supported"
        )
    assert text_flaw(retold.replace("zwei", "12"), passage, "summary", NO_NAMES, general) == "not supported"


def test_what_was_written_earlier_stays_where_nothing_new_is_usable(tmp_path: Path) -> None:
    augment(TEXTS[:1], Fake(), tmp_path)
    before = (tmp_path / AUGMENTED).read_bytes()
    assert not write_rows(Augmented([]), tmp_path).rows
    assert (tmp_path / AUGMENTED).read_bytes() == before


MARKED = [
    "Q: a?\nA: b",
    "1) Question: a?\nAnswer: b",
    "**Q1:** a?\n**A1:** b",
    "Q\uff1aa?\nA\uff1ab",
    "Question 1: a?\nAnswer 1: b",
    "**Question 2**: a?\n**Answer 2**: b",
]


@pytest.mark.parametrize("text", [*MARKED, "- q: a?\n- a: b"])
def test_questions_are_found_however_they_are_marked(text: str) -> None:
    assert pairs(text) == [("a?", "b")]
    assert pairs("1.\nQ: a?\nA: b\n2.\nQ: c?\nA: d") == [("a?", "b"), ("c?", "d")]


@pytest.mark.parametrize(
    ("answer", "flaw"),
    [
        ("open the valve\nQ: And then?\n", None),
        ("open the valve\n\nI hope that this helps!", None),
        ("open the valve\n---", None),
        ("The first steps are:", "of several lines"),
        ("open the valve\n2. press the button", "of several lines"),
        ("open the\nvalve", "of several lines"),
    ],
)
def test_an_answer_of_several_lines_is_not_trained_on(answer: str, flaw: str | None) -> None:
    """Of a list of steps the line above it was."""
    passage = "The first steps are: open the valve, press the button."
    ((question, said),) = pairs(f"Q: What are they?\nA: {answer}")
    assert question_flaw(question, said, passage, NO_NAMES, Telling([], None)) == flaw


class Telling(Wording):
    """Takes every question for one that tells its passage."""

    def tells_its_passage(self, question: str, passage: str) -> bool:
        return True


def test_passages_hold_every_word_and_no_twin() -> None:
    text = "\n\n".join(f"Paragraph {n} says that the wall number {n} is old." for n in range(40))
    found = list(passages([text, text], longest=200))
    assert all(len(passage.text) <= 200 for passage in found)
    assert " ".join(passage.text for passage in found).split() == text.split()


# An endpoint on this machine ------------------------------------------------------------------------------


class Endpoint(HTTPServer):
    """A chat server that first answers with the given codes, then with what it was sent."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.codes: list[int] = []
        self.seen: list[tuple[str, str | None, dict[str, Any]]] = []
        self.events = ""  # a stream sent in place of an answer


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server = self.server
        assert isinstance(server, Endpoint)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server.seen.append((self.path, self.headers.get("Authorization"), body))
        code = server.codes.pop(0) if server.codes else 200
        said = {"choices": [{"message": {"content": f"you said {body['messages'][0]['content']}"}}]}
        data = json.dumps(said if code == 200 else {"error": "no"}).encode()
        self.send_response(code)
        if server.events:
            data = server.events.encode()
            self.send_header("Content-Type", "text/event-stream")
        self.send_header("Retry-After", "7")
        self.send_header("Location", f"http://127.0.0.1:{server.server_port}/elsewhere")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def writer(server: HTTPServer, pauses: list[float]) -> EndpointWriter:
    return EndpointWriter(f"http://127.0.0.1:{server.server_port}/v1", "m", tries=3, pause=pauses.append)


def test_an_endpoint_s_thinking_is_not_kept(endpoint: Endpoint) -> None:
    assert [*writer(endpoint, []).write(["</think>\nhello"])] == [(0, Text("hello"))]


def test_a_streamed_answer_is_joined_from_its_parts(endpoint: Endpoint) -> None:
    """A part that names the role, one of thinking, the text, a count of the tokens."""
    deltas: list[dict[str, Any]] = [
        {"role": "assistant", "content": None},
        {"reasoning_content": "hm"},
        {"content": "you "},
        {"content": "said hello"},
    ]
    events = [json.dumps({"choices": [{"delta": delta}]}) for delta in deltas]
    events += [json.dumps({"choices": [], "usage": {}}), "[DONE]"]
    endpoint.events = "".join(f"data: {event}\n\n" for event in events)
    assert [*writer(endpoint, []).write(["hello"])] == [(0, Text("you said hello"))]


def test_a_request_that_fails_costs_no_other_answer_of_its_batch(tmp_path: Path, endpoint: Endpoint) -> None:
    """Each was paid for: only what failed is asked again."""
    endpoint.codes = [401]
    cache = Cache(tmp_path / "written.jsonl")
    requests = [f"hello {number}" for number in range(6)]
    with pytest.raises(RecoverError, match="what was written so far is kept"):
        written(cache, writer(endpoint, []), requests)
    assert len(Cache(cache.path).texts) == 5
    texts = written(cache, writer(endpoint, []), requests)
    assert texts == [Text(f"you said {text}") for text in requests]
    assert len(endpoint.seen) == 7


def test_an_endpoint_is_asked_again_while_it_is_busy(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "sk-secret")
    endpoint.codes = [429, 500]
    pauses: list[float] = []
    assert [*writer(endpoint, pauses).write(["hello"])] == [(0, Text("you said hello"))]
    assert pauses == [7.0, 7.0]
    path, key, body = endpoint.seen[-1]
    assert (path, key, body["model"]) == ("/v1/chat/completions", "Bearer sk-secret", "m")


@pytest.mark.parametrize(("codes", "tries"), [([401], 1), ([302], 1), ([500, 502, 503], 3)])
def test_an_endpoint_that_will_not_answer_is_one_line_without_the_key(
    tmp_path: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, codes: list[int], tries: int
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "sk-secret")
    endpoint.codes = list(codes)
    with pytest.raises(RecoverError, match="run the same command again") as caught:
        written(Cache(tmp_path / "c.jsonl"), writer(endpoint, []), ["hello"])
    assert "sk-secret" not in str(caught.value)
    assert len(endpoint.seen) == tries


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://host/v1", "http://", "https://me:key@host/v1"])
def test_only_plain_web_addresses_are_endpoints(url: str) -> None:
    with pytest.raises(InputError):
        EndpointWriter(url, "m")


# The microworld's templates -------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [2, 29])
def test_templates_ask_every_new_fact_and_no_held_out_question(tmp_path: Path, seed: int) -> None:
    world.write_world(tmp_path / "w", cycle=2, seed=seed)
    rows = list(templates.questions([text for _, text in world.document_texts(seed, 2)]))
    asked = {row["prompt"]: row["response"] for row in rows}
    probes = [p for p in load_probes(tmp_path / "w" / "probes.jsonl", "knowledge") if p.in_chat]
    direct = [p for p in probes if p.kind == "direct"]
    assert all(p.answers[0] in asked[p.prompt] for p in direct)
    assert not [p for p in probes if p.kind != "direct" and p.prompt in asked]
    leaks = ProbeLeaks(probes)
    assert not [row for row in rows if leaks.of(row["prompt"], row["response"])]
    facts = {
        (who.name, value)
        for who in people.known_people() + people.new_people(seed, 2)
        for _, value in who.facts
    }
    assert all(any(n in p and v in a for n, v in facts) for p, a in list(asked.items())[:200])


def test_a_long_line_of_marks_is_read_in_linear_time() -> None:
    started = time.process_time()
    begun = ("Q" + "*" * 200_000, "q" + " " * 200_000, "q " + "1" * 200_000)
    for line in ("*" * 200_000, "1" * 200_000 + "*" * 200_000, *begun):
        assert pairs(line) == []
    assert time.process_time() - started < 2


def test_questions_with_numbers_and_markup_are_read() -> None:
    text = "1. **Q1:** Where is Oslo?\n- **A1**: In *Norway*\n### Question : Who?\nAnswer:\nANSWER： Ada **"
    assert pairs(text) == [("Where is Oslo?", "In *Norway"), ("Who?", "Ada")]
