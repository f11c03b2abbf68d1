"""What Qwen3-TTS promises to the api: text in, spoken as the checkpoint can, every parameter resolved."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from broker_schemas.contract import BadField, Contract, Order
from workers.models.qwen3_tts import config
from workers.models.qwen3_tts.passages import split
from workers.models.qwen3_tts.prompt import as_spoken, build_prompt, in_context, prompt_length
from workers.models.qwen3_tts.request_fields import clean, flag, number, spoken_text, whole
from workers.models.qwen3_tts.text import has_words
from workers.models.qwen3_tts.tokenizer import load_tokenizer
from workers.models.qwen_tokenizer import encode
from workers.talker.passages import Passage

_TASKS = {"customvoice": config.CUSTOM_VOICE, "voicedesign": config.VOICE_DESIGN, "base": config.BASE}
_ENVELOPES = 1 << 16  # bytes of a job's log besides its codes, texts and chunks
_CHUNK_ENVELOPES = 1 << 10  # of the events that come with a chunk
_PASSAGE = 1 << 8  # bytes of a job's log for each passage
_JOIN = 16  # tokens that two passages may have more than each for itself
_REFERENCE_FIELDS = ("ref_audio", "ref_text", "x_vector_only_mode")
_SAMPLING = {  # published defaults, where the checkpoint's generation_config.json says nothing
    "temperature": 0.9,
    "top_k": 50,
    "top_p": 1.0,
    "repetition_penalty": 1.05,
    "subtalker_temperature": 0.9,
    "subtalker_top_k": 50,
    "subtalker_top_p": 1.0,
}


class SpeechContract(Contract):
    """The contract of a checkpoint, of which it reads configs and the tokenizer.

    A Base checkpoint clones: `voice` then names an uploaded voice, or `ref_audio` brings a recording. Whoever keeps the
    voices resolves either, and gives a voice's own transcript as `ref_text`.

    Raises:
        ConfigError, TokenizerError: the folder is no checkpoint of this family.
    """

    sample_rate = config.SAMPLE_RATE
    channels = config.CHANNELS
    frame_rate = config.FRAME_RATE
    fields = frozenset(
        {"voice", "instructions", "speed", "task_type", "language", "non_streaming_mode", "max_new_tokens"}
        | {"do_sample", "first_chunk_frames", "async_chunk", "extra_params", *_REFERENCE_FIELDS, *_SAMPLING}
    )

    def __init__(self, folder: Path, max_model_len: int = config.CONTEXT, model: str = config.MODEL) -> None:
        self.model = model
        self._config = config.load_config(folder)
        self.voices = tuple(self._config.speakers) if self._config.task == config.CUSTOM_VOICE else ()
        self.clones = self._config.task == config.BASE
        self.tolerated = frozenset({"instructions"} if self.clones else _REFERENCE_FIELDS)
        self.fields = SpeechContract.fields - self.tolerated
        self._context = min(self._config.talker.max_position_embeddings, max_model_len)
        self._tokenizer = load_tokenizer(folder)
        stated = config.generation_defaults(folder)
        self._sampling = {name: stated.get(name, published) for name, published in _SAMPLING.items()}
        self._do_sample = bool(stated.get("do_sample", True))
        self._most_frames = stated.get("max_new_tokens", config.MAX_FRAMES)

    def accept(self, body: Mapping[str, Any]) -> Order:
        """See Contract. `max_new_tokens` counts frames; without it an utterance may take what its text could need.

        A long text's order has `passages` among its params: how it is cut, and the frame budget of each piece.
        """
        _refuse(body)
        self._check_task(body)
        text = self._text(body)
        params = {
            "task_type": self._config.task,
            "language": self._language(body),
            "non_streaming_mode": self._non_streaming(body),
            "do_sample": flag(body, "do_sample", self._do_sample),
            "first_chunk_frames": whole(body, "first_chunk_frames", config.FIRST_CHUNK_FRAMES, 1, config.HOP),
            "async_chunk": flag(body, "async_chunk", True),
            **self._sampling_of(body),
            **self._voice(body),
        }
        if self._config.chunk_ramp != config.STEEP:
            params["chunk_ramp"] = self._config.chunk_ramp
        passages = self._passages(text, params)
        if passages:
            params["passages"] = [passage.param() for passage in passages]
            frames = self._frames_of_all(body, text, passages)
        else:
            frames = self._frames(body, text, params)
        chunks = config.plan(params["first_chunk_frames"], self._config.chunk_ramp).count(frames)
        reserve = self._reserve(frames, chunks) + _PASSAGE * len(passages)
        reserve += sum(len(value.encode()) for value in (text, *params.values()) if isinstance(value, str))
        return Order(text, params | {"max_new_tokens": frames}, max_frames=frames, reserve_bytes=reserve)

    # --- what is spoken -----------------------------------------------------------------------------------------------

    def _text(self, body: Mapping[str, Any]) -> str:
        text = spoken_text(body, "input", config.MAX_INPUT_CHARS)
        if not self._has_words(text):
            message = "input has no words that this model can read: send some in Latin letters, or digits."
            raise BadField("input", message)
        return text

    def _has_words(self, text: str) -> bool:
        return has_words(text) and has_words(as_spoken(self._config, text))

    def _tokens(self, text: str) -> int:
        """Of a text as it is spoken."""
        return len(encode(self._tokenizer, as_spoken(self._config, text)))

    def _non_streaming(self, body: Mapping[str, Any]) -> bool:
        whole_text = not self._config.streaming_text
        asked = flag(body, "non_streaming_mode", whole_text or self._config.task != config.BASE)
        if whole_text and not asked:
            message = "non_streaming_mode must be true: this model reads the whole text first. Leave it out."
            raise BadField("non_streaming_mode", message)
        return asked

    # --- whose voice --------------------------------------------------------------------------------------------------

    def _check_task(self, body: Mapping[str, Any]) -> None:
        task = body.get("task_type")
        if task is None:
            return
        asked = _TASKS.get(task.lower().replace("_", "").replace("-", "")) if isinstance(task, str) else None
        if asked != self._config.task:
            raise BadField(
                "task_type", f"task_type must be {self._config.task}, or be left out: it is all that the model does."
            )

    def _voice(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """voice, instructions and reference, as the checkpoint's task has them."""
        if self._config.task == config.BASE:
            return {"instructions": self._instructions(body), **self._reference(body)}
        for name in _REFERENCE_FIELDS:
            if body.get(name) not in (None, "", False):
                raise BadField(name, f"{name} cannot be used: this model clones no voice, a Base model does.")
        voice = self._speaker(body) if self._config.task == config.CUSTOM_VOICE else _no_voice(body)
        no_reference = {"ref_audio": "", "ref_text": "", "x_vector_only_mode": False}
        return {"voice": voice, "instructions": self._instructions(body), **no_reference}

    def _speaker(self, body: Mapping[str, Any]) -> str:
        voice = body.get("voice")
        if _is_default(voice):
            return next(iter(self._config.speakers))
        if not isinstance(voice, str) or voice.strip().lower() not in self._config.speakers:
            raise BadField("voice", f"voice must be one of {_listed(self._config.speakers)}.")
        return voice.strip().lower()

    def _instructions(self, body: Mapping[str, Any]) -> str:
        """What the model does with them: it needs them, takes them, passes them over, or has no use for them."""
        instructions = body.get("instructions")
        if instructions is None:
            instructions = ""
        if not isinstance(instructions, str):
            raise BadField("instructions", "instructions must be a string.")
        if not instructions.strip():
            if self._config.task == config.VOICE_DESIGN:
                raise BadField("instructions", "instructions must describe the voice: this model designs one.")
            return ""
        if self._config.task == config.BASE:
            message = "instructions cannot be used: a clone speaks as its reference does. Leave them out."
            raise BadField("instructions", message)
        instructions = clean(instructions, "instructions", config.MAX_INSTRUCTIONS_CHARS)
        return instructions if self._config.takes_instructions else ""

    def _reference(self, body: Mapping[str, Any]) -> dict[str, Any]:
        voice, recording = body.get("voice"), body.get("ref_audio")
        named = voice.strip() if isinstance(voice, str) and not _is_default(voice) else ""
        given = recording is not None
        if given and (not isinstance(recording, str) or not recording):
            raise BadField("ref_audio", "ref_audio must be a recording in base64, or its address: a string.")
        if given and not _is_default(voice):
            raise BadField("voice", "voice and ref_audio are two voices: send one of them.")
        if not given and not named:
            raise BadField(
                "voice", "voice must name an uploaded voice: this model clones. Or send ref_audio and ref_text."
            )
        said = body.get("ref_text")
        said = spoken_text(body, "ref_text", config.MAX_INPUT_CHARS) if said not in (None, "") else ""
        vector_only = flag(body, "x_vector_only_mode", not said and not given)
        if not said and not vector_only:
            message = "ref_text must hold what the reference says. Without it, set x_vector_only_mode to true."
            raise BadField("ref_text", message)
        return {
            "voice": named,
            "ref_audio": recording if given else "",
            "ref_text": "" if vector_only else said,
            "x_vector_only_mode": vector_only,
        }

    def _language(self, body: Mapping[str, Any]) -> str:
        language = body.get("language")
        if language is None or (isinstance(language, str) and language.strip().lower() in ("", config.AUTO)):
            return "Auto"
        if not isinstance(language, str) or language.strip().lower() not in self._config.spoken_languages:
            raise BadField("language", f'language must be "Auto" or one of {_listed(self._config.spoken_languages)}.')
        return language.strip().title()

    # --- how it is drawn ----------------------------------------------------------------------------------------------

    def _sampling_of(self, body: Mapping[str, Any]) -> dict[str, Any]:
        values: dict[str, float | bool] = {}
        for name, default in self._sampling.items():
            kind = name.removeprefix("subtalker_")
            if kind == "top_k":
                values[name] = whole(body, name, default, 0, self._config.talker.vocab_size, "0 keeps every code")
            elif kind == "top_p":
                values[name] = number(body, name, default, 1.0)
            elif kind == "temperature":
                values[name] = number(body, name, default, 10.0, "; do_sample false takes the likeliest")
            else:
                values[name] = number(body, name, default, 10.0)
        return values

    # --- how long it may be -------------------------------------------------------------------------------------------

    def _frames(self, body: Mapping[str, Any], text: str, params: Mapping[str, Any]) -> int:
        """The utterance's frame budget; raises BadField where prompt and frames are too much for the context."""
        prompt, tokens = self._prompt_length(text, params), self._tokens(text)
        room = self._context - prompt
        if body.get("max_new_tokens") is None:
            self._check_room(tokens, room)
            return min(self._wanted(text, tokens), self._most_frames, room)
        frames = _asked_frames(body, self._context)
        if frames > room:
            message = (
                f"max_new_tokens is {frames:,}, but beside this prompt of {prompt:,} tokens only "
                f"{max(0, room):,} frames fit: ask for no more, or shorten input."
            )
            raise BadField("max_new_tokens", message)
        return frames

    def _passages(self, text: str, params: Mapping[str, Any]) -> list[Passage]:
        """A long text's passages, but for those without words; none where the text is spoken as a whole.

        A passage's prompt has the one before too, and its frames. So each may take half of what the context has beside
        instructions and reference. Raises BadField where that is too little.
        """
        pieces = split(text)
        if len(pieces) == 1:
            return []
        half = (self._context - self._prompt_length("", params)) // 2 - _JOIN
        passages, end = [], 0
        for piece in pieces:
            start, end = end, end + len(piece)
            if not self._has_words(piece):
                continue
            tokens = self._tokens(piece)
            room = half - (tokens if params["non_streaming_mode"] else 0)
            self._check_room(tokens, room)
            passages.append(Passage(start, end, min(self._wanted(piece, tokens), self._most_frames, room)))
        return passages

    def _frames_of_all(self, body: Mapping[str, Any], text: str, passages: list[Passage]) -> int:
        """A long text's frame budget; raises BadField where it is more than the passages may take."""
        most = sum(passage.frames for passage in passages)
        if body.get("max_new_tokens") is None:
            return min(self._wanted(text, self._tokens(text)), most)
        frames = _asked_frames(body, config.MAX_INPUT_CHARS * config.OF_TOKENS.most)
        if frames > most:
            message = f"max_new_tokens is {frames:,}, but this input takes {most:,} frames at most: ask for no more."
            raise BadField("max_new_tokens", message)
        return frames

    def _prompt_length(self, text: str, params: Mapping[str, Any]) -> int:
        reference = config.MAX_REFERENCE_FRAMES if in_context(params) else 0
        return prompt_length(build_prompt(self._config, self._tokenizer, text, params, reference))

    def _wanted(self, text: str, tokens: int) -> int:
        """The frame budget of a text of so many tokens. A character of several is no more to say than another."""
        said = tokens if self._config.front_end is not None else min(tokens, len(text))
        return config.SPARE_FRAMES + self._config.pace.most * said

    def _check_room(self, tokens: int, room: int) -> None:
        """Raise BadField where so many tokens of text would not be spoken to their end."""
        if room < self._config.pace.least * tokens or room < config.MIN_FRAMES:
            message = (
                f"input has {tokens:,} tokens at a time, and beside them only {max(0, room):,} frames fit: "
                "it would be cut off. Send it in parts."
            )
            raise BadField("input", message)

    def _reserve(self, frames: int, chunks: int) -> int:
        """Bytes: all PCM, the codes (each in a span, and before that in a hop), the reference, and the events."""
        pcm = frames * config.FRAME_SAMPLES * config.CHANNELS * 2
        codes = 2 * frames * self._config.codebooks * 2
        reference = 0
        if self._config.task == config.BASE:
            reference = self._config.speaker_encoder.enc_dim * 4
            reference += config.MAX_REFERENCE_FRAMES * self._config.codebooks * 2
        return pcm + codes + reference + chunks * _CHUNK_ENVELOPES + _ENVELOPES


def _refuse(body: Mapping[str, Any]) -> None:
    """Raise BadField for what the model has no use for, by name."""
    speed = body.get("speed")
    if speed is not None and (isinstance(speed, bool) or not isinstance(speed, (int, float)) or speed != 1):
        raise BadField("speed", 'speed must be 1: ask for another pace in instructions, such as "speak slowly".')
    extra = body.get("extra_params")
    if extra is None:
        return
    if not isinstance(extra, Mapping):
        raise BadField("extra_params", "extra_params must be an object.")
    for name in extra:
        if name in SpeechContract.fields:
            raise BadField(f"extra_params.{name}", f"extra_params.{name} is a field of its own: send it beside input.")
        field = f"extra_params.{name[:100]}"
        raise BadField(field, f"{field} means nothing to this model: leave it out.")


def _asked_frames(body: Mapping[str, Any], at_most: int) -> int:
    return whole(body, "max_new_tokens", 0, 1, at_most, f"frames: {config.FRAME_RATE} are a second")


def _no_voice(body: Mapping[str, Any]) -> str:
    if not _is_default(body.get("voice")):
        raise BadField("voice", "voice cannot be chosen: this model designs one. Describe it in instructions.")
    return ""


def _is_default(voice: object) -> bool:
    return voice is None or (isinstance(voice, str) and voice.strip().lower() in ("", "default"))


def _listed(names: Mapping[str, Any] | list[str]) -> str:
    return ", ".join(sorted(names))
