"""How a long text is cut: at sentences, of any script, and without losing anything."""

# ruff: noqa: RUF001, the texts are of many scripts

from __future__ import annotations

import random
import time
import unicodedata
from itertools import pairwise

import pytest

from workers.models.qwen3_tts import passages
from workers.models.qwen3_tts.passages import LENGTH, SPARE, split

RIVER = "The river keeps its own slow time, and nobody on the bank has ever asked it to hurry. "


SENTENCES = {
    "titles": ["Dr. Smith met Mrs. Jones. ", "They spoke with Prof. Lee."],
    "initials": ["J. R. R. Tolkien wrote it. ", "The U.S. Army read it, e.g. at night."],
    "numbers": ["It is 3.14 or so. ", "See No. 5 and Fig. 212. ", "He said no. ", "Nobody came am 3. Mai."],
    "ellipses": ["Well... perhaps. ", "And then… ", "Nothing."],
    "quotes": ['"Go!" ', "She went. ", "(He did not.) ", "“Why?” ", "‘Because.’"],
    "marks together": ["What?! ", "No!!! ", "Yes."],
    "Chinese": ["东京很大。", "「真的吗？」", "他说。", "好！"],
    "Japanese": ["彼は「はい。」", "と言った。", "３．１４です．", "そう？"],
    "Hindi": ["यह सच है। ", "वह गया॥ ", "ठीक।"],
    "Arabic and Urdu": ["هل هذا صحيح؟ ", "یہ سچ ہے۔ ", "نعم."],
    "Greek and Russian": ["Это г. Москва. ", "Он ушёл. ", "Ναι."],
    "paragraphs": ["A heading\n\n", "then a text without a stop\n\n", "and another"],
    "lines": ["First line\n", "Second line that is\nwrapped by an editor\r\n", "Third"],
    "addresses": ["See example.com/a.b?c=d for more. ", "Thanks."],
}


@pytest.mark.parametrize("kind", SENTENCES)
def test_where_sentences_end(kind, monkeypatch):
    """Each is as long as a passage may be, so that none fits beside another."""
    sentences = SENTENCES[kind]
    for first, second in pairwise(sentences):
        weight = sum(map(passages._weight, first))
        monkeypatch.setattr(passages, "LENGTH", weight + sum(map(passages._weight, second)) - 1)
        monkeypatch.setattr(passages, "LEAST", 0)
        monkeypatch.setattr(passages, "SPARE", 0)
        assert split(first + second) == [first, second]
        monkeypatch.setattr(passages, "LENGTH", weight)
        assert split(first + second)[0] == first


def test_a_short_text_is_one_passage_and_so_is_one_a_little_longer():
    assert split("Hello.") == ["Hello."]
    assert split(RIVER * 4) == [RIVER * 4]
    assert sum(map(passages._weight, RIVER * 4)) > LENGTH
    assert len(split(RIVER * 5)) == 2


def test_whole_sentences_as_many_as_fit():
    assert split(RIVER * 40) == [RIVER * 3] * 12 + [RIVER * 4]
    chinese = "河流有自己的时间，岸边没有人催促它。"
    assert [len(piece) for piece in split(chinese * 40)] == [90] * 8


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        pytest.param("so it went on and on, as it does " * 60, ", ", id="clauses"),
        pytest.param("那么它就一直这样下去，" * 60, "，", id="Chinese clauses"),
        pytest.param("so it went on and on " * 60, " ", id="spaces"),
        pytest.param("x" * 2_000, "x", id="nothing to cut at"),
    ],
)
def test_a_sentence_that_is_too_long_is_cut_at_the_best_place_there_is(text, ends):
    assert all(piece.endswith(ends) for piece in split(text)[:-1])


def test_a_snippet_is_no_passage():
    """Not before a long sentence, and not at the end."""
    pieces = split("Yes. " + RIVER.replace(". ", ", ") * 9 + "End. Yes.")
    assert min(map(len, pieces)) >= passages.LEAST
    assert pieces[0].startswith("Yes. The river")


GRAPHEMES = ["👨‍👩‍👧", "🇩🇪", "👍🏽", "e\u0301\u0323", "क्षि", "❤️", "1️⃣", "한", "a\u20dd", "🏴󠁧󠁢󠁥󠁮󠁧󠁿"]


@pytest.mark.parametrize("grapheme", GRAPHEMES)
def test_no_grapheme_is_parted(grapheme):
    for before in ("", "x"):
        pieces = split(before + grapheme * 400)
        assert len(pieces) > 1
        assert all(len(piece) % len(grapheme) == 0 for piece in pieces[1:])


ALPHABETS = [
    "abc ABC ., ", "abcdefgh", "。，漢字かな", "ab.!?…\"'”’)([]", "\n\r\t ab\u2028", "0123456789.,", "👨‍👩‍👧🇩🇪👍🏽❤️",
    "e\u0301\u0323\u0327", "कखग्ि।॥ ", "مرحبا؟،۔ ", "ไทยภาษา", "한국어 ᄀ\u1161\u11a8", "\x00\x07\x1b\x7fa ",
    "\u200b\u200d\u202e\ufeffa ", ".", " ", "\U0010ffff\ud7ff",
]  # fmt: skip


def random_text(seed: int, length: int) -> str:
    """Runs of one alphabet after another, some of a single sign."""
    source, text = random.Random(seed), ""
    while len(text) < length:
        alphabet = source.choice(ALPHABETS)
        if source.random() < 0.2:
            alphabet = source.choice(alphabet)
        text += "".join(source.choices(alphabet, k=source.choice([1, 7, 60, 500])))
    return text[:length]


@pytest.mark.parametrize("seed", range(60))
def test_nothing_is_lost_and_no_passage_is_too_long(seed):
    text = random_text(seed, 10_000 if seed % 3 else 150 * seed)
    pieces = split(text)
    assert "".join(pieces) == text and split(text) == pieces
    weights = [sum(map(passages._weight, piece)) for piece in pieces]
    assert max(weights[:-1], default=0) <= LENGTH and weights[-1] <= LENGTH + SPARE
    assert len(pieces) == 1 or min(weights) > 0
    for before, piece in pairwise(pieces):
        if unicodedata.category(piece[0])[0] == "M" or piece[0] == "\u200d":  # a grapheme as long as a passage
            assert not any(passages._is_boundary(before, 0, place) for place in range(passages.LEAST, len(before)))


@pytest.mark.parametrize(
    "sign", [*".,!?…:;—)]”’\"' \n\t\r\u2028ax1漢。🇩\u0301\u200d", ".”", ")”", ". ", "a.", "1.", "\r\n"]
)
def test_a_run_of_one_sign_takes_no_longer(sign):
    """Fifty thousand characters are what a request may hold."""
    text = (sign * 50_000)[:50_000]
    began = time.process_time()
    assert "".join(split(text)) == text
    assert time.process_time() - began < 2
