"""The prompts that a talker is trained with: what the contract's requests will be, for phonemes that are known."""

from __future__ import annotations

import tempfile
from pathlib import Path

from workers.models.qwen3_tts.config import load_config
from workers.models.qwen3_tts.prompt import Prompt, build_prompt
from workers.models.qwen3_tts.tokenizer import load_tokenizer
from workers.models.qwen_tokenizer import encode
from workers.training.voice import SPEAKER, write_configs

_LANGUAGES = ("Auto", "English")
_ANY = "ə"  # a text of one token, to see what stands around it


class Prompter:
    """Makes prompts from templates, which are the served ones for a text of one phoneme.

    Attributes:
        pad: id of the text's padding token.
    """

    def __init__(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            write_configs(Path(folder), front_end=False)
            self._stated = load_config(Path(folder))
            self._tokenizer = load_tokenizer(Path(folder))
        self.pad = self._stated.tts_pad
        self._templates = [self.build(_ANY, language) for language in _LANGUAGES]
        (word,) = encode(self._tokenizer, _ANY)
        self._at = [len(template.text) - 1 - template.text[::-1].index(word) for template in self._templates]
        self._ids: dict[str, int] = {}
        self._turn = 0

    def build(self, phonemes: str, language: str) -> Prompt:
        """As the served model is prompted."""
        params = {
            "task_type": self._stated.task, "voice": SPEAKER, "language": language, "instructions": "",
            "non_streaming_mode": True, "x_vector_only_mode": False,
        }  # fmt: skip
        return build_prompt(self._stated, self._tokenizer, phonemes, params)

    def make(self, phonemes: str) -> tuple[Prompt, int]:
        """The prompt, in each language in turn, and the position of its first phoneme."""
        self._turn = (self._turn + 1) % len(_LANGUAGES)
        template, at = self._templates[self._turn], self._at[self._turn]
        words = [self._id(phoneme) for phoneme in phonemes]
        text = template.text[:at] + words + template.text[at + 1 :]
        codec = template.codec[:at] + template.codec[at : at + 1] * len(words) + template.codec[at + 1 :]
        return Prompt(text, codec, None, template.frames, template.trailing), at

    def _id(self, phoneme: str) -> int:
        if phoneme not in self._ids:
            (self._ids[phoneme],) = encode(self._tokenizer, phoneme)
        return self._ids[phoneme]
