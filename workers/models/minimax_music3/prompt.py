"""The prompt: caption cleaning, lyrics normalisation, assembly, and the unconditional twin.

All of it is part of the checkpoint's contract, to the byte: another space is another song. The api runs this on what
strangers send, so each pattern works in linear time.
"""

from __future__ import annotations

import re

from workers.models.minimax_music3.config import AUDIO_CFG

_TAG = re.compile(r"<\|([^|]*)\|>")
_HEADING = re.compile(r"^\s{0,3}#{1,6}\s+")
_BULLET = re.compile(r"^\s*[*+-]\s+")
_SECOND_BULLET = re.compile(r"^\s*\*\s+")
_BOLD = re.compile(r"\*\*([^*]+)\*\*")
_ITALIC = re.compile(r"(?<!\*)\*([^*\n]+)\*(?!\*)")
_RULE = re.compile(r"^\s*[-*_]{3,}\s*$", re.MULTILINE)
_BLANK_LINES = re.compile(r"\n{2,}")
_MANY_BLANK_LINES = re.compile(r"\n{4,}")

_LEADING_TAGS = re.compile(r"^[ \t]*((?:\[[^\]]+\][ \t]*)+)")
_SECTION = re.compile(r"\[([^\]]+)\]")


def clean_caption(caption: str) -> str:
    """The caption as the model was trained on: no special tokens, no Markdown, no blank lines."""
    text = _TAG.sub(_spell_out, caption)
    text = "\n".join(_plain_line(line) for line in text.splitlines())
    # More blank lines than three change nothing below, but would take quadratic time.
    text = _MANY_BLANK_LINES.sub("\n\n\n", text)
    text = _RULE.sub("", text)
    text = text.replace("• ", "").replace("    ", "")
    return _BLANK_LINES.sub("\n", text)


def _spell_out(tag: re.Match[str]) -> str:
    """`<|key value|>` as "key is value"."""
    inner = tag.group(1).strip()
    key, *value = inner.split(None, 1) or [""]
    return f"{key} is {value[0]}" if value else inner


def _plain_line(line: str) -> str:
    for pattern in (_HEADING, _BULLET, _SECOND_BULLET):
        line = pattern.sub("", line)
    nested = 1
    while nested:
        line, nested = _BOLD.subn(r"\1", line)
    return _ITALIC.sub(r"\1", line).rstrip()


def normalize_lyrics(lyrics: str) -> str:
    """The lyrics as the model was trained on: section tags in lower case, each on a line of its own, after [start].

    Text after the tags that begin a line is dropped.
    """
    text = "\n".join(_only_leading_tags(line) for line in lyrics.split("\n"))
    text = text.replace("] ", "]\n").replace(" [", "\n[").replace(" ^ ", "\n")
    # An opening bracket after the last closing one would be searched for its partner to the end, each in turn.
    closed = text.rfind("]") + 1
    text = _SECTION.sub(lambda tag: f"[{tag.group(1).lower()}]", text[:closed]) + text[closed:]
    return f"[start]\n{text}"


def _only_leading_tags(line: str) -> str:
    tags = _LEADING_TAGS.match(line)
    return tags.group(1).strip() if tags else line


def build_prompt(caption: str, lyrics: str) -> str:
    """The conditional row's prompt, special tokens spelled out."""
    return (
        f"<|im_start|><|caption_start|>{clean_caption(caption)}<|caption_end|>"
        f"<|lyrics_start|>{normalize_lyrics(lyrics)}<|lyrics_end|><|im_end|><|audio_start|>"
    )


def unconditional(ids: list[int]) -> list[int]:
    """The unconditional twin of a prompt's ids: of the same length, all but the first and the last two replaced."""
    return [ids[0], *[AUDIO_CFG] * (len(ids) - 3), *ids[-2:]]
