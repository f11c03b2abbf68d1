"""The tokenizer: Qwen's byte pairs with the music model's special tokens.

Read from a checkpoint's `tokenizer/` folder, without transformers, which an api process has no other use for; and
written as a published folder would be, for checkpoints that we make ourselves.
"""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from workers.models.minimax_music3.config import SPECIAL_TOKENS, ConfigError

_MERGES = Path(__file__).parent / "assets" / "qwen-merges.txt.xz"
_MERGES_HEADER = "#version: 0.2"
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# Qwen's own special tokens, in order of id; the music model took over some and added six.
_FIRST_SPECIAL = 151_643
_QWEN_SPECIALS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>", "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>",
    "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>",
    "<think>", "</think>",
)  # fmt: skip
# In Qwen's files these are added tokens that a text may hold, and no special ones.
_NOT_SPECIAL = frozenset(
    {"<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>"}
    | {"<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>"}
)


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer in `folder`: tokenizer.json, or else vocab.json and merges.txt.

    Raises:
        ConfigError: a file is missing or unreadable, or a special token has another id than this model's.
    """
    try:
        if (folder / "tokenizer.json").is_file():
            tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        else:
            tokenizer = _from_vocabulary(folder)
    except ConfigError:
        raise
    except Exception as error:  # tokenizers raises bare Exception for files that it cannot read
        raise ConfigError(f"the tokenizer in {folder} cannot be read: {error}") from error
    for token, expected in SPECIAL_TOKENS.items():
        found = tokenizer.token_to_id(token)
        if found != expected:
            raise ConfigError(f"the tokenizer in {folder} is not MiniMax-Music3's: {token} is {found}, not {expected}")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """Token ids; special tokens in the text become theirs, and none is added."""
    return tokenizer.encode(text, add_special_tokens=False).ids


def write_tokenizer(folder: Path) -> None:
    """Write a Hugging Face tokenizer folder: vocab.json, merges.txt, tokenizer.json, tokenizer_config.json."""
    pairs = _qwen_merges()
    vocabulary = _vocabulary(pairs)
    special = _special_tokens()
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "vocab.json", vocabulary)
    lines = (f"{left} {right}" for left, right in pairs)
    (folder / "merges.txt").write_text("\n".join([_MERGES_HEADER, *lines, ""]), encoding="utf-8")
    _build(vocabulary, pairs, special).save(str(folder / "tokenizer.json"), pretty=False)
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(special))


def _from_vocabulary(folder: Path) -> Tokenizer:
    for name in ("vocab.json", "merges.txt", "tokenizer_config.json"):
        if not (folder / name).is_file():
            raise ConfigError(f"{folder} holds neither tokenizer.json nor {name}")
    vocabulary = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    lines = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")
    pairs = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    added = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))["added_tokens_decoder"]
    special = {int(id_): AddedToken(**{"normalized": False} | _token_fields(token)) for id_, token in added.items()}
    return _build(vocabulary, pairs, special)


def _token_fields(token: dict[str, Any]) -> dict[str, Any]:
    names = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
    return {name: token[name] for name in names if name in token}


def _build(vocabulary: dict[str, int], pairs: list[tuple[str, str]], special: dict[int, AddedToken]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs, fuse_unk=False, byte_fallback=False))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel(add_prefix_space=False, use_regex=False)
    for _, token in sorted(special.items()):
        tokenizer.add_tokens([token])  # one by one: ids are given in this order
    return tokenizer


def _qwen_merges() -> list[tuple[str, str]]:
    lines = lzma.decompress(_MERGES.read_bytes()).decode("utf-8").splitlines()
    return [tuple(line.split(" ")) for line in lines]


def _vocabulary(pairs: list[tuple[str, str]]) -> dict[str, int]:
    """Tokens by rank: the single bytes, printable ones first, then what each pair makes."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    stand_ins = range(0x100, 0x200 - len(printable))  # for the bytes that do not print
    tokens = [chr(code) for code in (*printable, *stand_ins)]
    tokens += [left + right for left, right in pairs]
    return {token: rank for rank, token in enumerate(tokens)}


def _special_tokens() -> dict[int, AddedToken]:
    ids = {_FIRST_SPECIAL + i: token for i, token in enumerate(_QWEN_SPECIALS)}
    ids |= {id_: token for token, id_ in SPECIAL_TOKENS.items()}
    return {
        id_: AddedToken(token, normalized=False, special=token not in _NOT_SPECIAL)
        for id_, token in sorted(ids.items())
    }


def _tokenizer_config(special: dict[int, AddedToken]) -> dict[str, Any]:
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": {
            str(id_): {
                "content": token.content, "lstrip": token.lstrip, "normalized": token.normalized,
                "rstrip": token.rstrip, "single_word": token.single_word, "special": token.special,
            }
            for id_, token in special.items()
        },
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 131_072,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }  # fmt: skip


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")
