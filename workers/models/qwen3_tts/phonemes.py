"""The text front end: English as phonemes, by the package `hibari-tts` without its acoustic model.

What a checkpoint asks for is read by exactly the version that it names: another may read a text otherwise, and give
other bytes. A reading is a function of the text alone.
"""

from __future__ import annotations

import json
import re
import threading
import unicodedata
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from typing import TYPE_CHECKING

from workers.models.qwen3_tts.config import FRONT_END, ConfigError, FrontEnd
from workers.models.qwen3_tts.passages import split

if TYPE_CHECKING:
    from hibari.g2p import G2P

_PACKAGE = "hibari-tts"
_KEPT = 2_048  # sentences whose readings are kept: a text is counted, cut and spoken, and read once
# Letters of other scripts. One alone is read by its name, as in "π is 3.14"; words of them would be spelt as nonsense.
_LATIN = (
    "A-Za-z\u00aa-\u036f\u1d00-\u1dbf\u1e00-\u1eff\u2071-\u218f\u2c60-\u2c7f\ua720-\ua7ff\uab30-\uab6f\ufb00-\ufb06"
)
_OTHER_SCRIPTS = re.compile(rf"(?:(?![{_LATIN}\uff21-\uff5a])[^\W\d_]){{2,}}")
# What is written without white space is read at most so many parts at once: words by case, numbers, signs. In
# `[…](/…/)`, which says how something is spoken, there are none.
_SPOKEN_AS = r"\[[^\]\s]++\]\(/[^)/\s]++/\)"
_LOWER = "a-zß-öø-ÿ"
_PARTS = re.compile(rf"(?>{_SPOKEN_AS}|[^\W\d_{_LOWER}]*+[{_LOWER}]++|[^\W\d_]++|\d++|_|[^\w\s]){{1,16}}")
_UNBROKEN = re.compile(r"\S{17,}")
_NOTHING_BETWEEN = re.compile(r"\(\s*\)|“\s*”")

_loading = threading.Lock()


def installed() -> dict[str, str]:
    """The front end that is here, as a config.json names it: `text_front_end`."""
    return {"name": FRONT_END, "version": version(_PACKAGE)}


def check_installed(wanted: FrontEnd) -> None:
    """Raise ConfigError, saying what to install, where texts would not be read as the checkpoint needs it."""
    try:
        found = version(_PACKAGE)
    except PackageNotFoundError:
        found = "none"
    if found != wanted.version:
        raise ConfigError(
            f"the checkpoint's texts are read by {_PACKAGE} {wanted.version}, and {found} is installed: "
            f"pip install {_PACKAGE}=={wanted.version}"
        )


def load() -> None:
    """Load the package, and its network for unknown words: the first text would wait a second for them."""
    _ = _g2p().oov


@cache
def alphabet() -> frozenset[str]:
    """The characters that a reading may have: phonemes, stress, punctuation, the space."""
    return frozenset(json.loads((files("hibari") / "assets" / "vocab.json").read_text(encoding="utf-8")))


def reading(text: str) -> str:
    """The phonemes of a text, its sentences joined by a space; "" where nothing of it can be read.

    Words of other scripts than the Latin one are passed over. Any thread may call it; the first call loads the package.
    """
    return " ".join(sentences(text))


def sentences(text: str) -> list[str]:
    """The phonemes of each sentence that can be read."""
    from hibari import Hibari

    latin = _OTHER_SCRIPTS.sub(" ", unicodedata.normalize("NFC", text))
    # The package takes a time that grows with the square of a sentence, and with the cube of what has no white space.
    pieces = (piece for sentence in Hibari.split_sentences(latin) for piece in split(sentence))
    return list(filter(None, (_read(part) for piece in pieces for part in _broken(piece))))


def _broken(piece: str) -> list[str]:
    """A piece of a sentence, in several where it goes on and on without white space."""
    return _UNBROKEN.sub(lambda unbroken: "\n".join(_PARTS.findall(unbroken[0])), piece).split("\n")


@lru_cache(_KEPT)
def _read(sentence: str) -> str:
    known = "".join(character for character in _phonemes(sentence) if character in alphabet())
    return " ".join(_NOTHING_BETWEEN.sub("", known).split())


def _phonemes(text: str) -> str:
    """What the package reads, or a word or character for itself where it fails: for numbers beyond its names, say."""
    try:
        return _g2p()(text)
    except Exception:
        words = text.split()
        parts = words if len(words) > 1 else list(text.strip())
        return " ".join(map(_phonemes, parts)) if len(parts) > 1 else ""


def _g2p() -> G2P:
    with _loading:
        return _loaded()


@cache
def _loaded() -> G2P:
    from hibari.g2p import G2P

    return G2P()
