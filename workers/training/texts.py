"""The texts that a small English voice learns to read, with the phonemes that its teacher speaks.

    python -m workers.training.texts --sources DIR --out train.tsv --sentences 120000 --seed 1

reads the packages fetched by `workers.training.sources`, and writes train.tsv, and valid.tsv and test.tsv beside it.
A line is `id TAB text TAB phonemes`. The same sources, seed and count give the same lines.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import chain
from pathlib import Path

from workers.models.qwen3_tts import phonemes
from workers.training import coverage, report
from workers.training.lines import Line, write
from workers.training.sentences import BANDS, band, clean, lines, normal
from workers.training.sources import SOURCES, Source, coarse_words, vocabulary
from workers.training.templates import TEMPLATES, Vocabulary, generate

Phonemise = Callable[[Sequence[str]], list[tuple[str, ...]]]  # of each text, the phonemes of its sentences
Group = tuple[int, bool]  # place in BANDS, and whether templates made the line

GENERATED = 0.25  # share of the lines of each length that templates make
POOL = 1.4  # lines phonemised for each one taken, so that rare pairs of phonemes can be picked
VALIDATION = 200
RUN = 6  # words in a row that a line learnt from may not share with one held out
HELD_OUT = Path(__file__).parent / "held_out.txt"


class TooFewTexts(ValueError):
    """The sources have fewer lines of some length than asked for."""


class HeldOut:
    """What may not be learnt from: the runs of RUN words of the texts added, and the whole of shorter ones."""

    def __init__(self, texts: Iterable[str] = ()):
        self._runs: set[tuple[str, ...]] = set()
        for text in texts:
            self.add(text)

    def add(self, text: str) -> None:
        self._runs.update(self._of(text))

    def __contains__(self, text: str) -> bool:
        """Whether the text is a copy of one held out, or near to one."""
        return not self._runs.isdisjoint(self._of(text))

    @staticmethod
    def _of(text: str) -> Iterator[tuple[str, ...]]:
        spoken = normal(text)
        return (spoken[start : start + RUN] for start in range(max(1, len(spoken) - RUN + 1)))


def read_held_out(path: Path) -> list[Line]:
    """The test lines, `kind TAB text` each, numbered."""
    kinds_and_texts = (line.split("\t") for line in path.read_text("utf-8").splitlines())
    return [Line(f"test-{kind}-{number:03}", text) for number, (kind, text) in enumerate(kinds_and_texts, 1)]


def quotas(count: int) -> list[int]:
    """How many of `count` lines each of BANDS has."""
    of_band = [round(count * share) for _, _, share in BANDS]
    of_band[of_band.index(max(of_band))] += count - sum(of_band)
    return of_band


def interleave(by_source: dict[Source, list[Line]]) -> list[Line]:
    """The lines of all sources, mixed after their weights as long as they last."""
    order = []
    for source, of_source in by_source.items():
        order += ((place / source.weight, source.name, line) for place, line in enumerate(of_source, 1))
    return [line for *_, line in sorted(order, key=lambda entry: entry[:2])]


class Texts:
    """Candidate lines by length, none twice, none near to what is held out."""

    def __init__(self, seed: int, words: Vocabulary, held_out: HeldOut, refused_words: frozenset[str] = frozenset()):
        self._vocabulary, self._held_out, self._refused_words = words, held_out, refused_words
        self._seed = seed
        self._seen: set[tuple[str, ...]] = set()
        self._numbers: Counter[str] = Counter()
        self._read: list[dict[Source, list[Line]]] = [defaultdict(list) for _ in BANDS]

    def _line(self, origin: str, text: str) -> Line | None:
        if (spoken := normal(text)) in self._seen or text in self._held_out:
            return None
        self._seen.add(spoken)
        self._numbers[origin] += 1
        return Line(f"{origin}-{self._numbers[origin]:06}", text)

    def read(self, source: Source, passages: Iterable[str]) -> None:
        """Adds the clean lines of a source."""
        rng = random.Random(f"{self._seed} {source.name}")
        for text in chain.from_iterable(lines(passage, rng, self._refused_words) for passage in passages):
            if line := self._line(source.name, text):
                self._read[band(text)][source].append(line)
        for of_band in self._read:
            rng.shuffle(of_band[source])

    def take_read(self, place: int, count: int) -> list[Line]:
        """The next `count` lines of a band, or as many as there are; they are not given again."""
        by_source = self._read[place]
        taken = [line for line in interleave(by_source) if line.text not in self._held_out][:count]
        gone = {line.id for line in taken}
        for source, of_source in by_source.items():
            by_source[source] = [line for line in of_source if line.id not in gone]
        return taken

    def generate(self, place: int, count: int, purpose: str) -> list[Line]:
        """New lines of a band made from templates. Raises TooFewTexts where the templates run out."""
        rng = random.Random(f"{self._seed} {purpose} {place}")
        at_least, at_most, _ = BANDS[place]
        made: list[Line] = []
        for _ in range(100 * count + 1000):
            if len(made) == count:
                return made
            kind, text = generate(rng, self._vocabulary, at_least, at_most)
            text = clean(text, self._refused_words)
            if text and band(text) == place and (line := self._line(kind, text)):
                made.append(line)
        raise TooFewTexts(f"templates make only {len(made)} of {count} lines of {at_least} to {at_most} words")

    def take(self, place: int, count: int, purpose: str) -> list[Line]:
        """Lines of a band in no special order: GENERATED of them made, the others read, or made where none is left."""
        taken = self.take_read(place, count - round(GENERATED * count))
        taken += self.generate(place, count - len(taken), purpose)
        random.Random(f"{self._seed} {purpose} {place}").shuffle(taken)
        return taken


def held_and_learnt(texts: Texts, held_out: HeldOut, count: int, phonemise: Phonemise) -> tuple[list[Line], list[Line]]:
    """VALIDATION lines, which are held out from then on, and `count` lines to learn from, all with phonemes."""
    valid = list(chain.from_iterable(texts.take(place, part, "valid") for place, part in enumerate(quotas(VALIDATION))))
    for line in valid:
        held_out.add(line.text)
    pool: list[tuple[Group, Line]] = []
    for place, part in enumerate(quotas(count)):
        pool += (((place, line.origin in TEMPLATES), line) for line in texts.take(place, round(POOL * part), "train"))
    spoken = with_phonemes([line for _, line in pool], phonemise)
    candidates = [(group, line) for (group, _), line in zip(pool, spoken, strict=True) if line.phonemes]
    chosen = coverage.choose(
        [(line.phonemes, group) for group, line in candidates],
        group_quotas(count, Counter(group for group, _ in candidates)),
    )
    return with_phonemes(valid, phonemise), [candidates[place][1] for place in chosen]


def group_quotas(count: int, available: Mapping[Group, int]) -> dict[Group, int]:
    """How many lines of each band are read and how many are made; where too few can be read, more are made."""
    of_group = {}
    for place, part in enumerate(quotas(count)):
        of_group[place, False] = min(part - round(GENERATED * part), available[place, False])
        of_group[place, True] = part - of_group[place, False]
    return of_group


def with_phonemes(of: Sequence[Line], phonemise: Phonemise) -> list[Line]:
    spoken = phonemise([line.text for line in of])
    return [Line(line.id, line.text, sentences) for line, sentences in zip(of, spoken, strict=True)]


class Phonemiser:
    """The teacher's reading of texts, on several processes."""

    def __init__(self, processes: int):
        self._processes = processes

    def __call__(self, texts: Sequence[str]) -> list[tuple[str, ...]]:
        """The phonemes of each text's sentences, as the served voice reads them."""
        if self._processes == 1:
            phonemes.load()
            return list(map(read_sentences, texts))
        with ProcessPoolExecutor(self._processes, initializer=phonemes.load) as pool:
            return list(pool.map(read_sentences, texts, chunksize=200))


def read_sentences(text: str) -> tuple[str, ...]:
    return tuple(phonemes.sentences(text))


def main() -> None:
    parser = argparse.ArgumentParser(description="Choose the texts that a small voice is trained on.")
    parser.add_argument("--sources", type=Path, required=True, help="folder of workers.training.sources")
    parser.add_argument("--out", type=Path, required=True, help="train.tsv; valid.tsv and test.tsv are beside it")
    parser.add_argument("--sentences", type=int, default=120_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--held-out", type=Path, default=HELD_OUT, help="the test lines: kind TAB text")
    parser.add_argument("--processes", type=int, default=1, help="that phonemise")
    asked = parser.parse_args()
    test = read_held_out(asked.held_out)
    held_out = HeldOut(line.text for line in test)
    texts = Texts(asked.seed, vocabulary(asked.sources), held_out, coarse_words(asked.sources))
    for source in SOURCES:
        texts.read(source, source.passages(asked.sources))
    phonemise = Phonemiser(asked.processes)
    valid, train = held_and_learnt(texts, held_out, asked.sentences, phonemise)
    random.Random(asked.seed).shuffle(train)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    write(asked.out, train)
    write(asked.out.with_name("valid.tsv"), valid)
    write(asked.out.with_name("test.tsv"), with_phonemes(test, phonemise))
    print(report.describe(train))


if __name__ == "__main__":
    main()
