"""What MiniMax-Music3 promises to the api: lyrics and a caption in, and no control that the model does not have."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from broker_schemas.contract import BadField, Contract, Order
from workers.models.minimax_music3 import config
from workers.models.minimax_music3.prompt import build_prompt
from workers.models.minimax_music3.tokenizer import encode, load_tokenizer

_INTERNAL = "belongs to the server, which pairs each song's two rows itself: leave it out."
_SAMPLING = (
    "cannot be set: this model always draws from its 50 likeliest codes, guided by 1.5. Leave it out; `seed` gives "
    "another take."
)
_REFERENCE = "cannot be used: the model takes no reference audio. Describe the voice in `instructions`."
_REFUSED = {
    "ref_audio": _REFERENCE,
    "ref_text": _REFERENCE,
    "language": "cannot be set: it follows the lyrics. Leave it out, and write `input` in the language to sing.",
    "task_type": "cannot be set: the model has one task, a song of lyrics (`input`) and a caption (`instructions`).",
    "temperature": _SAMPLING,
    "top_p": _SAMPLING,
    "top_k": _SAMPLING,
    "repetition_penalty": _SAMPLING,
    "cfg_role": _INTERNAL,
    "cfg_pair_id": _INTERNAL,
    "cfg_null_prompt": _INTERNAL,
}
_ENVELOPES = 1 << 16  # bytes of a job's log besides its codes and texts


class MusicContract(Contract):
    """The contract of a checkpoint, of which it reads configs and the tokenizer.

    Raises:
        ConfigError: the folder is no checkpoint of this family.
    """

    sample_rate = config.SAMPLE_RATE
    channels = config.CHANNELS
    frame_rate = float(config.FRAME_RATE)
    fields = frozenset({"instructions", "max_new_tokens", "async_chunk", "voice", "speed", "extra_params"})

    def __init__(self, folder: Path, max_model_len: int = config.CONTEXT, model: str = config.MODEL) -> None:
        self.model = model
        self._context = min(config.context(folder), max_model_len)
        self._tokenizer = load_tokenizer(folder / config.TOKENIZER)
        encoder = config.component_config(folder, config.CONDITION_ENCODER)
        transformer = config.component_config(folder, config.TRANSFORMER)
        self._width = encoder["condition_hidden_dim"]
        self._overlap_width = encoder["out_dim"] + transformer["in_channels"]

    def accept(self, body: Mapping[str, Any]) -> Order:
        """See Contract. `max_new_tokens` counts frames; without it a song may take all that fit beside its prompt."""
        _refuse(body)
        lyrics = _text(body, "input", "hold the lyrics", config.MAX_LYRICS_CHARS)
        caption = _text(body, "instructions", "describe the music", config.MAX_CAPTION_CHARS)
        frames = _frames(body)
        async_chunk = body.get("async_chunk", True)
        if not isinstance(async_chunk, bool):
            raise BadField("async_chunk", "async_chunk must be true or false.")
        tokens = len(encode(self._tokenizer, build_prompt(caption, lyrics)))
        frames = self._fitting(tokens, frames)
        params = {"instructions": caption, "max_new_tokens": frames, "async_chunk": async_chunk}
        texts = len(lyrics.encode()) + len(caption.encode())
        return Order(lyrics, params, max_frames=frames, reserve_bytes=self._reserve(frames) + texts)

    def _fitting(self, tokens: int, frames: int | None) -> int:
        """The song's frame budget; raises BadField where prompt and frames are too much for the context."""
        too_long = "instructions and input together"
        if tokens > config.MAX_PROMPT_TOKENS:
            message = f"{too_long} make a prompt of {tokens:,} tokens: shorten them to {config.MAX_PROMPT_TOKENS:,}."
            raise BadField("input", message)
        room = min(self._context - tokens - config.LEAD, config.MAX_FRAMES)
        if room < 1:
            message = f"{too_long} make a prompt of {tokens:,} tokens: no frame fits beside it, shorten them."
            raise BadField("input", message)
        if frames is not None and frames > room:
            message = (
                f"max_new_tokens is {frames:,}, but beside this prompt of {tokens:,} tokens only {room:,} frames "
                f"({room / config.FRAME_RATE:g} s) fit: ask for no more, or shorten instructions or input."
            )
            raise BadField("max_new_tokens", message)
        return room if frames is None else frames

    def _reserve(self, frames: int) -> int:
        """Bytes: all PCM, all conditioning (the acoustic stage may be far behind), codes, and the carry."""
        latents = config.latent_length(frames) + config.PLAN.count(frames)
        samples = latents * config.LATENT_SAMPLES * config.SAMPLE_RATE // config.VOCODER_RATE + 1
        pcm = samples * config.CHANNELS * 2
        conditioning = frames * self._width * 4
        codes = 2 * (frames + config.LEAD) * config.CODEBOOKS * 2  # each in a span, and before that in a hop
        shared = config.PLAN.window * self._width * 4
        carry = config.OVERLAP_LATENTS * self._overlap_width * 4 + shared
        return pcm + conditioning + codes + carry + _ENVELOPES


def _refuse(body: Mapping[str, Any]) -> None:
    """Raise BadField for what the model has no use for, by name."""
    for name, why in _REFUSED.items():
        if body.get(name) is not None:
            raise BadField(name, f"{name} {why}")
    voice = body.get("voice")
    if voice is not None and not (isinstance(voice, str) and voice.strip().lower() in ("", "default")):
        message = 'voice cannot be chosen: leave it out or say "default", and describe it in `instructions`.'
        raise BadField("voice", message)
    speed = body.get("speed")
    if speed is not None and (isinstance(speed, bool) or not isinstance(speed, (int, float)) or speed != 1):
        raise BadField("speed", 'speed must be 1: put the tempo in instructions, such as "at 92 BPM".')
    extra = body.get("extra_params")
    if extra is None:
        return
    if not isinstance(extra, Mapping):
        raise BadField("extra_params", "extra_params must be an object.")
    for name, value in extra.items():
        if name in _REFUSED and value is not None:
            raise BadField(f"extra_params.{name}", f"extra_params.{name} {_REFUSED[name]}")
        if name not in _REFUSED:
            field = f"extra_params.{name[:100]}"
            raise BadField(field, f"{field} means nothing to this model: leave it out.")


def _text(body: Mapping[str, Any], name: str, what: str, at_most: int) -> str:
    text = body.get(name)
    if not isinstance(text, str) or not text.strip():
        raise BadField(name, f"{name} must {what}: a string that is not empty.")
    if len(text) > at_most:
        raise BadField(name, f"{name} is {len(text):,} characters long: shorten it to {at_most:,}.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        message = f"{name} holds half a surrogate pair at character {error.start}: send whole characters."
        raise BadField(name, message) from None
    return text


def _frames(body: Mapping[str, Any]) -> int | None:
    frames = body.get("max_new_tokens")
    if frames is None:
        return None
    if isinstance(frames, bool) or not isinstance(frames, int) or not 1 <= frames <= config.MAX_FRAMES:
        message = (
            f"max_new_tokens must be a whole number of frames, 1 to {config.MAX_FRAMES:,}: "
            f"there are {config.FRAME_RATE} a second."
        )
        raise BadField("max_new_tokens", message)
    return frames
