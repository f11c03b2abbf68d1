"""The authors' package, run in an environment of its own: `python qwen3_tts_reference.py SUBCOMMAND PATH ...`.

Each subcommand is a function here. It reads and writes files, and needs nothing of this project.
"""

from __future__ import annotations

import json
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import numpy as np
import torch


def decode_codes(checkpoint: Path, codes: Path, sound: Path) -> None:
    """Decode utterances whole, in float32: .npz of (frames, 16) int64 -> .npz of (samples,) float32, same names."""
    from qwen_tts.core.tokenizer_12hz.configuration_qwen3_tts_tokenizer_v2 import Qwen3TTSTokenizerV2DecoderConfig
    from qwen_tts.core.tokenizer_12hz.modeling_qwen3_tts_tokenizer_v2 import Qwen3TTSTokenizerV2Decoder
    from safetensors.torch import load_file

    stated = json.loads((checkpoint / "speech_tokenizer" / "config.json").read_text())
    decoder = Qwen3TTSTokenizerV2Decoder._from_config(Qwen3TTSTokenizerV2DecoderConfig(**stated["decoder_config"]))
    stored = load_file(checkpoint / "speech_tokenizer" / "model.safetensors")
    weights = {name.removeprefix("decoder."): stored[name] for name in stored if name.startswith("decoder.")}
    decoder.load_state_dict(weights, strict=True)
    decoder.eval()
    with torch.inference_mode(), np.load(codes) as utterances:
        np.savez(sound, **{name: decoder(torch.from_numpy(u.T)[None])[0, 0].numpy() for name, u in utterances.items()})


def load(checkpoint: Path):
    """The whole model in float32, its text split as it is for a checkpoint that is named by its repo id.

    For a local folder this release of transformers takes every config of version 4.57.3 for one of Mistral's.
    """
    import transformers
    from qwen_tts import Qwen3TTSModel

    transformers.PreTrainedTokenizerBase._patch_mistral_regex = classmethod(lambda _, tokenizer, *__, **___: tokenizer)
    return Qwen3TTSModel.from_pretrained(str(checkpoint), dtype=torch.float32, attn_implementation="eager")


def _stand_in_for_25hz() -> None:
    """Stand-ins for what only the 25 Hz tokenizer needs, and requirements-qwen-tts.txt leaves out."""
    for name in ("sox", "onnxruntime", "torchaudio", "torchaudio.compliance", "torchaudio.compliance.kaldi"):
        module = sys.modules[name] = ModuleType(name)
        module.__spec__ = ModuleSpec(name, loader=None)
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)


def state_shapes(checkpoint: Path, shapes: Path) -> None:
    """Names and shapes of all tensors that the package's own classes have -> .json."""
    model = load(checkpoint).model
    states = {"": model.state_dict(), "speech_tokenizer/": model.speech_tokenizer.model.state_dict()}
    found = {f"{at}{name}": list(tensor.shape) for at, state in states.items() for name, tensor in state.items()}
    shapes.write_text(json.dumps(found))


def speak(checkpoint: Path, asked: Path, said: Path) -> None:
    """Speak as CustomVoice without the sound -> .npz of codes, their hidden states, the prompt and the trailing text.

    Args:
        asked: .npz of `request`, the JSON of generate_custom_voice's arguments, and, for sampling, of `noise`
            (frames, 16, ids), which is added to the log probabilities in place of a draw from torch's generator.
    """
    tts, kept = load(checkpoint), {}
    generate, talk = tts.model.generate, tts.model.talker.generate
    question = dict(np.load(asked))

    def keep_prompt(**kwargs) -> object:
        kept["prompt"], kept["trailing"] = kwargs["inputs_embeds"][0].numpy(), kwargs["trailing_text_hidden"][0].numpy()
        return talk(**kwargs)

    def keep_codes(**kwargs) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        codes, hidden = generate(**kwargs)
        kept["codes"], kept["hidden"] = codes[0].numpy(), hidden[0].numpy()
        return codes, hidden

    def draw(probabilities: torch.Tensor, num_samples: int) -> torch.Tensor:
        noise = torch.from_numpy(next(draws)[: probabilities.shape[-1]])
        return (probabilities.double().log() + noise).argmax(dim=-1, keepdim=True)

    if "noise" in question:
        draws = iter(question["noise"].reshape(-1, question["noise"].shape[-1]))
        torch.multinomial = draw
    tts.model.talker.generate, tts.model.generate = keep_prompt, keep_codes
    tts.model.speech_tokenizer.decode = lambda _: ([], 0)
    tts.generate_custom_voice(**json.loads(str(question["request"])))
    np.savez(said, **kept)


def encode_recordings(checkpoint: Path, recordings: Path, encoded: Path) -> None:
    """A folder of WAV files, as references for clones -> .npz of each one's NAME/{pcm, mel, speaker, codes}."""
    model = load(checkpoint)
    import librosa
    from qwen_tts.core.models.modeling_qwen3_tts import mel_spectrogram

    found = {}
    for path in sorted(recordings.glob("*.wav")):
        [prompt] = model.create_voice_clone_prompt(str(path), ref_text="as said")
        pcm, rate = librosa.load(path, sr=None, mono=True)
        pcm = librosa.resample(y=pcm, orig_sr=rate, target_sr=24_000) if rate != 24_000 else pcm
        mel = mel_spectrogram(torch.from_numpy(pcm)[None], 1_024, 128, 24_000, 256, 1_024, 0, 12_000)[0].T
        arrays = {"pcm": pcm, "mel": mel, "speaker": prompt.ref_spk_embedding, "codes": prompt.ref_code}
        found |= {f"{path.stem}/{name}": np.asarray(array) for name, array in arrays.items()}
    np.savez(encoded, **found)


class _Prompted(Exception):
    """The prompt is there, and no more is wanted."""


def prompts(checkpoint: Path, asked: Path, built: Path) -> None:
    """Build prompts and no more -> .npz of each request's I/prompt (positions, hidden) and I/trailing (draws, hidden).

    Args:
        asked: .npz of `requests`, the JSON of [[method, arguments], ...]; and for a clone of I/speaker and, where it is
            in context, I/codes.
    """
    tts, found = load(checkpoint), {}
    from qwen_tts import VoiceClonePromptItem

    def keep(**kwargs) -> None:
        found[f"{index}/prompt"] = kwargs["inputs_embeds"][0].numpy()
        found[f"{index}/trailing"] = kwargs["trailing_text_hidden"][0].numpy()
        raise _Prompted

    tts.model.talker.generate = keep
    question = dict(np.load(asked))
    for index, (method, arguments) in enumerate(json.loads(str(question["requests"]))):
        if f"{index}/speaker" in question:
            codes, heard = question.get(f"{index}/codes"), arguments.pop("ref_text", None)
            arguments["voice_clone_prompt"] = [
                VoiceClonePromptItem(
                    ref_code=None if codes is None else torch.from_numpy(codes),
                    ref_spk_embedding=torch.from_numpy(question[f"{index}/speaker"]),
                    x_vector_only_mode=codes is None,
                    icl_mode=codes is not None,
                    ref_text=heard,
                )
            ]
        try:
            getattr(tts, method)(**arguments)
        except _Prompted:
            continue
    np.savez(built, **found)


if __name__ == "__main__":
    torch.set_num_threads(1)
    _stand_in_for_25hz()
    globals()[sys.argv[1]](*map(Path, sys.argv[2:]))
