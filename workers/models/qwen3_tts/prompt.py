"""The talker's prompt, as data: what is added up at each of its positions.

A position holds a text token's projected embedding and, in all but the instructions and the role, something of the
talker's own vocabulary: a steering token, the speaker, or a frame of the reference. All of it is part of the
checkpoint's contract, to the byte: another space is another utterance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from workers.models.qwen3_tts import config
from workers.models.qwen3_tts.phonemes import reading
from workers.models.qwen_tokenizer import encode

NOTHING = -1  # in place of a codec token: the position holds the text alone, or what `Prompt` says

_ROLE = "<|im_start|>assistant\n"
_END = "<|im_end|>\n"


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the talker reads before its first draw, and beside its draws.

    text: for each position, the id of its text token. codec: for each position, an id of the talker's vocabulary, or
    NOTHING. speaker: the position of the reference's speaker vector, or None. frames: the positions of the frames that
    it goes on from, each the sum of its codes' embeddings: the reference's, and a passage's before. trailing: the
    text tokens whose embeddings are added to what follows draws 0, 1, ...; the padding token's from there on.
    """

    text: list[int]
    codec: list[int]
    speaker: int | None
    frames: range
    trailing: list[int]


def build_prompt(
    stated: config.SpeechConfig, tokenizer: Tokenizer, text: str, params: Mapping[str, Any], frames: int = 0
) -> Prompt:
    """The prompt of a request.

    Args:
        params: a JobRequested's, with nothing left to resolve.
        frames: of an in-context clone's reference, and of what was said of the text before.
    """
    role, words = _said(stated, tokenizer, text, _END + _ROLE)
    draft = _Draft(stated)
    if instructions := _instructions(stated, params):
        draft.say(encode(tokenizer, f"<|im_start|>user\n{instructions}<|im_end|>\n"))
    draft.say(role)
    draft.steer(_language(stated, params), _speaker(stated, params), clone=params["task_type"] == config.BASE)
    if in_context(params):
        _, heard = _said(stated, tokenizer, params["ref_text"], _END)
        words = heard + words
    words.append(stated.tts_eos)
    if params["non_streaming_mode"]:
        draft.whole_text(words)
        trailing = draft.begin([], frames)
    else:
        trailing = draft.begin(words, frames)
    return Prompt(draft.text, draft.codec, draft.speaker, draft.frames, trailing)


def prompt_length(prompt: Prompt) -> int:
    """Positions that the prompt takes."""
    return len(prompt.text)


def in_context(params: Mapping[str, Any]) -> bool:
    """Whether the request is a clone that goes on from its reference's own frames."""
    return params["task_type"] == config.BASE and not params["x_vector_only_mode"]


def as_spoken(stated: config.SpeechConfig, text: str) -> str:
    """What is encoded of a text that is spoken: its reading, where the checkpoint has a front end."""
    return text if stated.front_end is None else reading(text)


def _said(stated: config.SpeechConfig, tokenizer: Tokenizer, text: str, after: str) -> tuple[list[int], list[int]]:
    """The role's tokens and those of what it says, parted by number: a text's beginning may be one with a line end."""
    role, rest = (len(encode(tokenizer, piece)) for piece in (_ROLE, after))
    tokens = encode(tokenizer, f"{_ROLE}{as_spoken(stated, text)}{after}")
    return tokens[:role], tokens[role : len(tokens) - rest]


def _instructions(stated: config.SpeechConfig, params: Mapping[str, Any]) -> str:
    return params["instructions"] if stated.takes_instructions else ""


def _speaker(stated: config.SpeechConfig, params: Mapping[str, Any]) -> int | None:
    return stated.speakers[params["voice"].lower()] if params["task_type"] == config.CUSTOM_VOICE else None


def _language(stated: config.SpeechConfig, params: Mapping[str, Any]) -> int | None:
    """The language's id; None leaves it to the model. Who has a dialect speaks it for Chinese."""
    language = params["language"].lower()
    if params["task_type"] == config.CUSTOM_VOICE and language in (config.AUTO, "chinese"):
        language = stated.dialects.get(params["voice"].lower(), language)
    return None if language == config.AUTO else stated.languages[language]


class _Draft:
    """A prompt in the making, position by position."""

    def __init__(self, stated: config.SpeechConfig) -> None:
        self._stated = stated
        self.text: list[int] = []
        self.codec: list[int] = []
        self.speaker: int | None = None
        self.frames = range(0)

    def say(self, text: list[int]) -> None:
        """Text alone: the instructions, the role."""
        self._add(text, [NOTHING] * len(text))

    def steer(self, language: int | None, speaker: int | None, *, clone: bool) -> None:
        """Language and speaker, over padding; the last of it marks where text begins."""
        talker = self._stated.talker
        if language is None:
            tags = [talker.codec_nothink_id, talker.codec_think_bos_id, talker.codec_think_eos_id]
        else:
            tags = [talker.codec_think_id, talker.codec_think_bos_id, language, talker.codec_think_eos_id]
        if clone:
            self.speaker = len(self.text) + len(tags)
            tags.append(NOTHING)
        elif speaker is not None:
            tags.append(speaker)
        self._add([self._stated.tts_pad] * len(tags), tags)
        self._add([self._stated.tts_bos], [talker.codec_pad_id])

    def whole_text(self, words: list[int]) -> None:
        """Non-streaming: all of the text before the first frame."""
        self._add(words, [self._stated.talker.codec_pad_id] * len(words))

    def begin(self, spread: list[int], frames: int) -> list[int]:
        """The frames' beginning and the reference's frames, beside a text spread over them; returns the text's rest."""
        beside = spread[: frames + 1]
        beside += [self._stated.tts_pad] * (frames + 1 - len(beside))
        start = len(self.text) + 1
        self.frames = range(start, start + frames)
        self._add(beside, [self._stated.talker.codec_bos_id] + [NOTHING] * frames)
        return spread[frames + 1 :]

    def _add(self, text: list[int], codec: list[int]) -> None:
        self.text += text
        self.codec += codec
