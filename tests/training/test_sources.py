"""How each package is read, from small ones of the same form; and that each names its licence."""

from __future__ import annotations

import gzip
import json
import struct
import zlib
from pathlib import Path

import pytest

from workers.training import sources
from workers.training.sources import SOURCES, WORD_LISTS, MissingSource


def put(root: Path, name: str, content: str | bytes) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def test_wordnet_gives_definitions_examples_and_words(tmp_path):
    licence = "  1 This software and database is being provided  \n"
    sense = (
        "00001740 29 v 02 breathe 0 take_a_breath 0 001 @ 00005041 v 0000 01 + 02 00 | (medicine) draw `air' in; out; "
        '"I can breathe"; "gasp"  \n'
    )
    for part in ("noun", "verb", "adj", "adv"):
        put(tmp_path, f"usr/share/wordnet/data.{part}", licence + (sense if part == "verb" else ""))
    assert list(sources.wordnet_definitions(tmp_path)) == ["breathe: draw 'air' in; out."]
    assert list(sources.wordnet_examples(tmp_path)) == ["I can breathe"]
    assert list(sources.wordnet_words(tmp_path)) == ["breathe.", "take a breath."]


def test_chats_give_one_message_after_the_other(tmp_path):
    long = " ".join(["long"] * 40)
    messages = [[{"text": "Hello"}, {"text": "You? "}, {"text": long}], [{"text": f"{long}."}, {"text": ""}]]
    put(tmp_path, "chitchat_dataset/dataset.json", json.dumps({"id": {"prompt": "?", "messages": messages}}))
    assert list(sources.chats(tmp_path)) == ["Hello", "You?", f"{long}.", ""]


def test_dialogues_give_their_turns(tmp_path):
    put(tmp_path, "chatterbot_corpus/data/english/food.yml", "conversations:\n- - Hungry?\n  - Always.\n  - 5\n")
    assert list(sources.dialogues(tmp_path)) == ["Hungry?", "Always."]


def serialised(*strings: str) -> bytes:
    """A vector of strings as R writes it in its XDR format, version 3."""
    encoded = [text.encode() for text in strings]
    charsxps = b"".join(struct.pack(">Ii", 0x00040009, len(text)) + text for text in encoded)
    return b"X\n" + struct.pack(">IIIi", 3, 0, 0, 5) + b"UTF-8" + struct.pack(">Ii", 16, len(encoded)) + charsxps


def test_novels_give_the_paragraphs_of_every_vector_in_the_database(tmp_path):
    vectors = [serialised(f"Novel {novel}", "goes on.", "", *["The end."] * 100) for novel in (1, 2)]
    database = b"".join(struct.pack(">I", len(vector)) + zlib.compress(vector) for vector in vectors)
    put(tmp_path, "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb", database)
    paragraphs = list(sources.novels(tmp_path))
    assert [text for text in paragraphs if "Novel" in text] == ["Novel 1\ngoes on.", "Novel 2\ngoes on."]


def test_scripture_gives_paragraphs_without_markup_notes_or_titles(tmp_path):
    book = (
        '<title>Of light</title><div sID="g1" type="x-p"/><w lemma="strong:H1">Let there</w> be light.'
        '<note type="study">Or, <w>day</w>.</note> It was.<div eID="g1" type="x-p"/><div sID="g2" type="x-p"/>Next.'
    )
    block = zlib.compress(book.encode())
    put(tmp_path, "usr/modules/texts/ztext/web/nt.bzz", b"...." + block)
    put(tmp_path, "usr/modules/texts/ztext/web/nt.bzs", struct.pack("<III", 4, len(block), len(book)))
    assert [text for text in sources.scripture(tmp_path) if text] == ["Let there be light. It was.", "Next."]


def test_a_dictionary_gives_prose_without_headwords_and_references(tmp_path):
    text = "ABATIS, n.  Rubbish in front\nof a {fort}.\n\n [Usenet; common] A habit."
    put(tmp_path, "usr/share/dictd/a.dict.dz", gzip.compress(text.encode()))
    assert list(sources.dictionary(tmp_path)) == [" Rubbish in front\nof a fort.", "  A habit."]


def test_verses_lose_their_numbers(tmp_path):
    put(tmp_path, "usr/share/dhammapada-english-transl.txt", "Mind goes\nbefore all. 1\n\nHate never ends. 5")
    assert list(sources.verses(tmp_path)) == ["Mind goes\nbefore all.", "Hate never ends."]


def test_a_manual_gives_its_prose_alone(tmp_path):
    prose = "Prose about the :keyword:`!if` word."
    page = f"Title\n=====\n\n.. note::\n\n{prose}\n\n   >>> code()\n\nFor example::\n\n* an item"
    put(tmp_path, "usr/html/_sources/a/b.rst.txt", page)
    assert list(sources.manual(tmp_path)) == ["Prose about the if word."]


def test_word_lists_are_parsed_and_never_run(tmp_path):
    faker, wonder = "Faker/faker/providers", "wonderwords/wonderwords/assets"
    dangerous = "raise SystemExit\n"
    person = 'class P:\n    first_names_female = D((("Ada", 0.5),))\n    first_names_male = ("Bo",)\n'
    person += '    last_names = ("Li",)\n'
    put(tmp_path, f"{faker}/person/en_US/__init__.py", dangerous + person)
    put(tmp_path, f"{faker}/job/__init__.py", 'class P:\n    jobs: E[str] = ("Baker", "Engineer, civil")\n')
    put(tmp_path, f"{faker}/address/en_US/__init__.py", 'class P:\n    states = ("Ohio",)\n')
    put(tmp_path, f"{faker}/address/en/__init__.py", 'class P:\n    countries = ("Peru", "Cote d\'Ivoire")\n')
    put(tmp_path, f"{wonder}/nounlist.txt", "cat\nad hoc\n")
    put(tmp_path, f"{wonder}/adjectivelist.txt", "calm\n")
    put(tmp_path, f"{wonder}/verblist.txt", "carry\n\n")
    put(tmp_path, f"{wonder}/profanitylist.txt", "Damn\ngo away\n")
    words = sources.vocabulary(tmp_path)
    assert (words.first_names, words.last_names, words.states) == (("Ada", "Bo"), ("Li",), ("Ohio",))
    assert (words.countries, words.jobs, words.nouns, words.verbs) == (("Peru",), ("baker",), ("cat",), ("carry",))
    assert sources.coarse_words(tmp_path) == {"damn"}


def test_a_source_that_is_not_there_says_how_to_fetch_it(tmp_path):
    with pytest.raises(MissingSource, match=r"workers\.training\.sources"):
        next(SOURCES[0].passages(tmp_path))


def test_a_package_of_another_form_is_refused(tmp_path):
    (tmp_path / "chitchat-dataset").mkdir()
    with pytest.raises(MissingSource, match=r"dataset\.json"):
        next(SOURCES[0].passages(tmp_path))


def test_every_source_states_a_licence_that_asks_for_no_copyleft():
    for entry in (*SOURCES, *WORD_LISTS):
        assert entry.licence and entry.origin and entry.registry in ("debian", "pypi")
        assert not any(word in entry.licence for word in ("GPL", "SA", "NC", "ND", "GFDL"))
    assert len({source.name for source in SOURCES}) == len(SOURCES)
