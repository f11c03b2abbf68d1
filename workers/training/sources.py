"""Where the training texts come from: freely licensed packages, and how each is read.

    python -m workers.training.sources DIR

fetches them all into DIR, without root: Debian's need `apt-get` and `dpkg`, PyPI's need `pip`. Texts and word lists are
only read to make speech; none is shipped.
"""

from __future__ import annotations

import argparse
import ast
import gzip
import json
import re
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from workers.training.templates import Vocabulary


class MissingSource(FileNotFoundError):
    """A source is not in the folder, or not as this module knows it; fetch it again."""


@dataclass(frozen=True, slots=True)
class Source:
    """A body of text inside a package. `read` takes the unpacked package and yields passages of running text."""

    name: str
    registry: str  # debian | pypi
    package: str  # with its version, where the registry keeps old ones
    licence: str  # of the text, as its owner states it
    origin: str  # work and author
    weight: float  # how often its sentences are drawn beside the others'
    read: Callable[[Path], Iterator[str]]

    def passages(self, folder: Path) -> Iterator[str]:
        """Passages of the package unpacked in `folder`. Raises MissingSource."""
        root = folder / package_name(self.package)
        if not root.is_dir():
            raise MissingSource(f"{root}: run python -m workers.training.sources {folder}")
        yield from self.read(root)


def package_name(package: str) -> str:
    return package.partition("==")[0]


def only(root: Path, pattern: str) -> Path:
    """The one file below root that the pattern names. Raises MissingSource."""
    found = sorted(root.glob(pattern))
    if not found:
        raise MissingSource(f"{root} has no {pattern}")
    return found[0]


def synsets(root: Path) -> Iterator[tuple[list[str], str]]:
    """WordNet's (words, gloss) of every sense."""
    for part in ("noun", "verb", "adj", "adv"):
        for line in only(root, f"**/data.{part}").read_text("utf-8").splitlines():
            if line.startswith(" "):  # the licence
                continue
            record, _, gloss = line.partition(" | ")
            fields = record.split()
            words = fields[4 : 4 + 2 * int(fields[3], 16) : 2]
            yield [re.sub(r"\(\w+\)$", "", word).replace("_", " ") for word in words], gloss.strip().replace("`", "'")


QUOTED = re.compile(r'"([^"]+)"')


def wordnet_definitions(root: Path) -> Iterator[str]:
    """`Breathe: draw air into, and expel out of, the lungs.`"""
    for words, gloss in synsets(root):
        definition = re.sub(r"^\([^)]*\) *", "", gloss.partition('; "')[0]).strip(" ;")
        if definition and '"' not in definition:
            yield f"{words[0]}: {definition}."


def wordnet_examples(root: Path) -> Iterator[str]:
    for _, gloss in synsets(root):
        yield from (example for example in QUOTED.findall(gloss) if " " in example)


def wordnet_words(root: Path) -> Iterator[str]:
    """Words and terms by themselves."""
    for words, _ in synsets(root):
        yield from (f"{word}." for word in words)


CHAT_CHARS = 160  # longer messages were cut, unless they end with a mark


def chats(root: Path) -> Iterator[str]:
    """One message after the other of people who talk of anything."""
    conversations = json.loads(only(root, "chitchat_dataset/dataset.json").read_text("utf-8"))
    for conversation in conversations.values():
        for messages in conversation["messages"]:
            texts = (message["text"].strip() for message in messages)
            yield from (text for text in texts if len(text) <= CHAT_CHARS or text[-1] in ".?!")


def dialogues(root: Path) -> Iterator[str]:
    for path in sorted(root.glob("chatterbot_corpus/data/english/*.yml")):
        for turns in yaml.safe_load(path.read_text("utf-8"))["conversations"]:
            yield from (turn for turn in turns if isinstance(turn, str))


def novels(root: Path) -> Iterator[str]:
    """Paragraphs of the novels, which R keeps as vectors of lines in compressed, serialised form."""
    database = only(root, "**/janeaustenr/data/Rdata.rdb").read_bytes()
    while database:
        stream = zlib.decompressobj()
        lines = character_vector(stream.decompress(database[4:]))  # 4: the length when unpacked
        yield from "\n".join(lines).split("\n\n")
        database = stream.unused_data


def character_vector(serialised: bytes) -> list[str]:
    """The first long vector of strings in R's XDR serialisation."""
    STRSXP, CHARSXP, MISSING = 16, 9, -1
    at = -1
    while (at := serialised.find(struct.pack(">I", STRSXP), at + 1)) >= 0:
        (count,) = struct.unpack_from(">i", serialised, at + 4)
        position, strings = at + 8, []
        while len(strings) < count and position + 8 <= len(serialised):
            flags, length = struct.unpack_from(">Ii", serialised, position)
            if flags & 0xFF != CHARSXP or length < MISSING:
                break
            position += 8 + max(length, 0)
            strings.append(serialised[position - max(length, 0) : position].decode("utf-8"))
        if len(strings) == count > 100:
            return strings
    return []


MARKUP = re.compile(r"<[^>]*>")
NOTE = re.compile(r"<(note|title)\b[^>]*?(?<!/)>.*?</\1>", re.S)
PARAGRAPH = re.compile(r'<div sID="[^"]*" type="x-p"/>|<chapter [^>]*>|<lg [^>]*>')


def scripture(root: Path) -> Iterator[str]:
    """Paragraphs of a SWORD module: a .bzs index of (offset, size, unpacked size) into zlib blocks of OSIS markup."""
    for index in sorted(root.glob("**/ztext/*/*.bzs")):
        blocks = index.with_suffix(".bzz").read_bytes()
        for offset, size, _ in struct.iter_unpack("<III", index.read_bytes()):
            book = zlib.decompress(blocks[offset : offset + size]).decode("utf-8")
            yield from (MARKUP.sub("", paragraph) for paragraph in PARAGRAPH.split(NOTE.sub("", book)))


def dictionary(root: Path) -> Iterator[str]:
    """Paragraphs of a dictd dictionary without its headwords, labels and cross-references."""
    text = gzip.decompress(only(root, "**/dictd/*.dict.dz").read_bytes()).decode("utf-8", "replace")
    for paragraph in re.split(r"\n\s*\n", text):
        prose = re.sub(r"^\s*[A-Z' -]+, [a-z.&]+\s", "", paragraph)
        yield re.sub(r"[{}]", "", re.sub(r"\[[^\]]*\]", "", prose))


def verses(root: Path) -> Iterator[str]:
    text = only(root, "**/dhammapada-english-transl.txt").read_text("latin-1")
    for paragraph in re.split(r"\n\s*\n", text):
        yield re.sub(r"\s*\b\d+\s*$", "", paragraph)


def manual(root: Path) -> Iterator[str]:
    """Prose paragraphs of a manual written in reStructuredText: no code, no directives, no lists."""
    for path in sorted(root.glob("**/_sources/**/*.rst.txt")):
        for paragraph in re.split(r"\n\s*\n", path.read_text("utf-8")):
            if re.match(r"[A-Z]", paragraph) and not re.search(r"^[=*~^-]{3}|::$", paragraph, re.M):
                yield re.sub(r":\w+:`!?([A-Za-z ]+)`", r"\1", paragraph)


SOURCES = (
    Source(
        "chitchat",
        "pypi",
        "chitchat-dataset==0.9.0",
        "MIT",
        "Chit-Chat Challenge conversations, by the Perception, Control & Cognition lab of Brigham Young University",
        4,
        chats,
    ),
    Source(
        "dialogues",
        "pypi",
        "chatterbot-corpus==1.3.3",
        "BSD-3-Clause",
        "ChatterBot corpus, English dialogues, by Gunther Cox and contributors",
        1,
        dialogues,
    ),
    Source(
        "wordnet-examples",
        "debian",
        "wordnet-base",
        "WordNet 3.0 license",
        "WordNet 3.0, example sentences, by Princeton University",
        3,
        wordnet_examples,
    ),
    Source(
        "wordnet-definitions",
        "debian",
        "wordnet-base",
        "WordNet 3.0 license",
        "WordNet 3.0, definitions, by Princeton University",
        1.5,
        wordnet_definitions,
    ),
    Source(
        "wordnet-words",
        "debian",
        "wordnet-base",
        "WordNet 3.0 license",
        "WordNet 3.0, words and terms, by Princeton University",
        2,
        wordnet_words,
    ),
    Source(
        "austen",
        "debian",
        "r-cran-janeaustenr",
        "public domain (packaged under MIT)",
        "The six novels of Jane Austen, 1811 to 1817, after Project Gutenberg",
        2,
        novels,
    ),
    Source(
        "web-bible",
        "debian",
        "sword-text-web",
        "public domain",
        "World English Bible, by its contributors",
        1,
        scripture,
    ),
    Source(
        "jargon",
        "debian",
        "dict-jargon",
        "public domain",
        "The Jargon File 4.4.7, edited by Eric S. Raymond",
        2,
        dictionary,
    ),
    Source(
        "devil",
        "debian",
        "dict-devil",
        "public domain",
        "The Devil's Dictionary, by Ambrose Bierce, 1911",
        1,
        dictionary,
    ),
    Source(
        "dhammapada",
        "debian",
        "display-dhammapada",
        "public domain",
        "The Dhammapada, translated by John Richards, 1993",
        1,
        verses,
    ),
    Source(
        "python-docs",
        "debian",
        "python3.11-doc",
        "PSF-2.0",
        "Python 3.11 documentation, by the Python Software Foundation",
        1,
        manual,
    ),
)


@dataclass(frozen=True, slots=True)
class WordList:
    """A package whose word lists fill the templates or keep words out."""

    name: str
    package: str
    licence: str
    origin: str
    registry: str = "pypi"


WORD_LISTS = (
    WordList("faker", "Faker==40.63.0", "MIT", "Faker, names, jobs, states and countries, by joke2k"),
    WordList("wonderwords", "wonderwords==3.0.1", "MIT", "Wonderwords, English words, by Maxim Rebguns"),
)


def literals(module: Path, *names: str) -> tuple[str, ...]:
    """The strings assigned to these class attributes of a module, which is parsed, never run. Raises MissingSource."""
    found: dict[str, None] = {}
    for node in ast.walk(ast.parse(module.read_text("utf-8"))):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id in names for target in targets) and node.value:
            strings = (part.value for part in ast.walk(node.value) if isinstance(part, ast.Constant))
            found.update(dict.fromkeys(text for text in strings if isinstance(text, str)))
    if not found:
        raise MissingSource(f"{module} assigns none of {names}")
    return tuple(found)


def word_lines(path: Path) -> tuple[str, ...]:
    lines = (line.strip() for line in path.read_text("utf-8").splitlines())
    return tuple(line for line in lines if line)


def vocabulary(folder: Path) -> Vocabulary:
    """The words that templates draw from. Raises MissingSource."""
    providers, lists = folder / "Faker/faker/providers", folder / "wonderwords/wonderwords/assets"
    person = only(providers, "person/en_US/__init__.py")
    jobs = literals(only(providers, "job/__init__.py"), "jobs")
    plain = re.compile(r"[a-z]+$")
    return Vocabulary(
        first_names=literals(person, "first_names_female", "first_names_male"),
        last_names=literals(person, "last_names"),
        states=literals(only(providers, "address/en_US/__init__.py"), "states"),
        countries=tuple(
            name
            for name in literals(only(providers, "address/en/__init__.py"), "countries")
            if re.fullmatch(r"[A-Za-z ]+", name)
        ),
        jobs=tuple(job.lower() for job in jobs if re.fullmatch(r"[A-Za-z ]+", job)),
        nouns=tuple(filter(plain.match, word_lines(only(lists, "nounlist.txt")))),
        adjectives=tuple(filter(plain.match, word_lines(only(lists, "adjectivelist.txt")))),
        verbs=tuple(filter(plain.match, word_lines(only(lists, "verblist.txt")))),
    )


def coarse_words(folder: Path) -> frozenset[str]:
    """Single words that no sentence may have. Raises MissingSource."""
    listed = word_lines(only(folder / "wonderwords", "wonderwords/assets/profanitylist.txt"))
    return frozenset(word.lower() for word in listed if word.isalpha())


def fetch(folder: Path) -> None:
    """Downloads and unpacks every package into `folder`, each under its own name."""
    folder.mkdir(parents=True, exist_ok=True)
    for registry, package in sorted({(entry.registry, entry.package) for entry in (*SOURCES, *WORD_LISTS)}):
        unpacked = folder / package_name(package)
        if unpacked.is_dir():
            continue
        if registry == "debian":
            subprocess.run(["apt-get", "download", package], cwd=folder, check=True)
            subprocess.run(["dpkg", "-x", only(folder, f"{package}_*.deb"), unpacked], check=True)
        else:
            wheels = folder / "wheels" / package_name(package)
            download = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
            subprocess.run([*download, "--dest", wheels, package], check=True)
            zipfile.ZipFile(only(wheels, "*.whl")).extractall(unpacked)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Fetch the packages that training texts are read from.")
    parser.add_argument("folder", type=Path)
    fetch(parser.parse_args().folder)
