"""Qwen3-TTS's configs are checked; random checkpoints are made by seed, and scaled so that every stage is heard."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from broker_schemas.events import JobRequested
from tests.tiny_checkpoint import tiny_checkpoint
from workers.checkpoints import load_component
from workers.models.family import load_family
from workers.models.qwen3_tts import checkpoint, config
from workers.models.qwen3_tts.acoustic import load_acoustic
from workers.models.qwen3_tts.checkpoint import make_checkpoint, model_weights
from workers.models.qwen3_tts.contract import SpeechContract
from workers.models.qwen3_tts.reference import ReferenceEncoder
from workers.models.qwen3_tts.talker import load_talker
from workers.runners.torch_runner import TorchRunner
from workers.talker.frames import FrameHistory

CODEBOOKS, CODES = 16, 2_048
SIZES = (
    "tiny", "tiny-design", "tiny-base", "0.6b", "0.6b-design", "0.6b-base", "1.7b", "1.7b-design", "1.7b-base", "tiny-8"
)  # fmt: skip
HEARD = (0.05, 0.5)  # the RMS of every stage's output


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    make_checkpoint(folder, "tiny-base", 0)
    return folder


def digests(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def rms(sound: np.ndarray | torch.Tensor) -> float:
    return float(np.sqrt(np.mean(np.square(np.asarray(sound, dtype=np.float64)))))


class TestMaking:
    def test_the_seed_makes_the_checkpoint(self, tmp_path):
        for name, seed in (("one", 5), ("again", 5), ("other", 6)):
            make_checkpoint(tmp_path / name, "tiny", seed)
        one, again, other = (digests(tmp_path / name) for name in ("one", "again", "other"))
        assert one == again
        assert {name for name in one if one[name] != other[name]} == {
            "model.safetensors",
            "speech_tokenizer/model.safetensors",
        }

    def test_the_layout_is_the_published_one(self):
        folder = tiny_checkpoint("qwen3_tts")
        assert set(digests(folder)) == {
            "config.json", "generation_config.json", "preprocessor_config.json", "model.safetensors",
            "vocab.json", "merges.txt", "tokenizer_config.json",
            "speech_tokenizer/config.json", "speech_tokenizer/preprocessor_config.json",
            "speech_tokenizer/model.safetensors",
        }  # fmt: skip
        assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < 60e6

    def test_sizes(self):
        assert load_family("qwen3_tts").sizes == SIZES == tuple(checkpoint.SIZES)
        counts = {size: sum(np.prod(w.shape) for w in model_weights(*checkpoint.SIZES[size])) for size in SIZES}
        assert 0.9e9 < counts["0.6b"] < 0.92e9  # "0.6b" counts no embeddings
        assert 1.9e9 < counts["1.7b"] < 1.93e9
        names = {size: {w.name for w in model_weights(*checkpoint.SIZES[size])} for size in SIZES}
        assert names["1.7b"] == names["1.7b-design"] < names["1.7b-base"]
        assert all(name.startswith("speaker_encoder.") for name in names["1.7b-base"] - names["1.7b"])

    def test_refusals(self, tmp_path):
        with pytest.raises(ValueError, match="tiny, tiny-design, tiny-base"):
            make_checkpoint(tmp_path, "7b", 0)
        (tmp_path / "something").touch()
        with pytest.raises(FileExistsError):
            make_checkpoint(tmp_path, "tiny", 0)

    def test_the_true_size_is_kept_in_bfloat16(self, tmp_path, monkeypatch):
        monkeypatch.setitem(checkpoint.SIZES, "cut", (_cut(checkpoint.WIDTHS["1.7b"]), config.CUSTOM_VOICE))
        monkeypatch.setattr(checkpoint, "_write_speech_tokenizer", lambda *_: None)
        make_checkpoint(tmp_path, "cut", 0)
        with safe_open(tmp_path / "model.safetensors", "pt") as stored:
            assert {str(stored.get_slice(name).get_dtype()) for name in stored.keys()} == {"BF16"}  # noqa: SIM118


def _cut(widths: checkpoint.Size) -> checkpoint.Size:
    """The same, but with one thin layer and a narrow text embedding, so that it is quickly written."""
    thin = {"num_hidden_layers": 1, "intermediate_size": 64}
    return checkpoint.Size(
        **{name: getattr(widths, name) for name in checkpoint.Size.__slots__}
        | {"talker": widths.talker | thin | {"text_hidden_size": 8}, "predictor": widths.predictor | thin}
    )


class TestSound:
    """Each stage of the tiny checkpoint is heard; the true sizes' scales come from the same rules."""

    def test_decoder(self):
        stage = load_acoustic(tiny_checkpoint("qwen3_tts"), {})
        codes = np.random.default_rng(0).integers(0, CODES, (25, CODEBOOKS)).astype(np.int16)
        sound, _ = stage.window(codes, index=0, last=True, seed=0, state={}, check=lambda: None)
        assert sound.shape == (25 * config.FRAME_SAMPLES, 1)
        assert HEARD[0] < rms(sound / 32_768) < HEARD[1]
        assert np.mean(np.abs(sound) > 32_700) < 0.001  # clipping would hide differences

    def test_reference_encoders(self, base):
        time_ = np.arange(2 * config.SAMPLE_RATE) / config.SAMPLE_RATE
        drawn = np.random.default_rng(0)
        voice = 0.2 * np.sin(2 * np.pi * 170 * time_ + 8 * np.sin(3 * time_)) * (1 + np.sin(9 * time_))
        reference = ReferenceEncoder(base, {}).encode(
            (voice + 0.02 * drawn.standard_normal(len(time_))).astype(np.float32), config.SAMPLE_RATE, True
        )
        assert HEARD[0] < rms(reference.speaker) < HEARD[1]
        assert reference.codes.shape == (25, CODEBOOKS)
        assert all(len(np.unique(book)) > 12 for book in reference.codes.T)  # no book says the same all the time

    def test_utterances_end_by_themselves_and_faster_than_real_time(self):
        folder = tiny_checkpoint("qwen3_tts")
        talker, contract = load_talker(folder, {"max_jobs": 8}), SpeechContract(folder)
        runner = TorchRunner(talker, max_jobs=8, max_model_len=512)
        order = contract.accept({"input": "Streams carry events, and processes come and go.", "max_new_tokens": 400})
        histories = []
        for seed in range(8):
            request = JobRequested(
                model="qwen3_tts", input=order.input, params=order.params, seed=seed, owner="o", deadline=0
            )
            none = np.empty((0, CODEBOOKS), np.int16)
            histories.append(FrameHistory(str(seed), request, order.max_frames, config.LEAD, none))
            runner.admit(histories[-1], talker.prompts(request))
        started = time.process_time()
        while any(history.reason is None for history in histories):
            runner.step()
        spent = time.process_time() - started
        lengths = [len(history.codes) for history in histories]
        ended = [length for history, length in zip(histories, lengths, strict=True) if history.reason == "stop"]
        assert len(ended) >= 6
        assert len(set(ended)) >= 5
        assert 10 < np.mean(lengths) < 250
        assert spent < sum(lengths) / config.FRAME_RATE


class TestConfig:
    @pytest.fixture
    def copy(self, tmp_path) -> Path:
        for name in ("config.json", "speech_tokenizer/config.json"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            shutil.copy(tiny_checkpoint("qwen3_tts") / name, tmp_path / name)
        return tmp_path

    @pytest.mark.parametrize(
        ("section", "changes", "told"),
        [
            ((), {"model_type": "qwen3"}, "model_type is 'qwen3'"),
            ((), {"tokenizer_type": "qwen3_tts_tokenizer_25hz"}, "tokenizer_type"),
            ((), {"tts_model_type": "singing"}, "custom_voice, voice_design, base"),
            ((), {"talker_config": None}, "talker_config"),
            ((), {"tts_pad_token_id": 151_936}, "text token 151936 is beyond the 151936 text tokens"),
            ((), {"im_start_token_id": 151_936}, "text token 151936"),
            ((), {"assistant_token_id": -1}, "text token -1"),
            (("talker_config",), {"num_code_groups": 32}, "32 code groups, and code_predictor_config 16"),
            (("talker_config",), {"num_code_groups": 1}, "1 code groups (num_code_groups), not 2 or more"),
            (
                ("talker_config",),
                {"vocab_size": 3_073},
                "3073 ids (vocab_size), not the predictor's 2048 codes and 1024",
            ),
            (("talker_config",), {"codec_eos_token_id": 2047}, "2047 is a code"),
            (("talker_config",), {"spk_id": {"ryan": 3_072}}, "beyond the talker's 3072 ids"),
            (("talker_config",), {"spk_id": {}}, "without speakers"),
            (("talker_config",), {"spk_is_dialect": {"eric": "bavarian"}}, "'bavarian'"),
            (("talker_config", "code_predictor_config"), {"vocab_size": 1_024}, "not the predictor's 1024 codes"),
            (
                ("talker_config", "code_predictor_config"),
                {"vocab_size": 40_000},
                "40000 codes (vocab_size), not 2 to 32768",
            ),
        ],
    )
    def test_what_the_pipeline_rests_on_is_checked(self, copy, section, changes, told):
        stated = json.loads((copy / "config.json").read_text())
        within = stated
        for name in section:
            within = within[name]
        within |= changes
        (copy / "config.json").write_text(json.dumps(stated))
        with pytest.raises(config.ConfigError) as refused:
            config.load_config(copy)
        assert told in str(refused.value)
        assert "config.json" in str(refused.value)

    @pytest.mark.parametrize("name", ["hidden_size", "codec_bos_id", "rope_theta"])
    def test_a_missing_field_is_named(self, copy, name):
        stated = json.loads((copy / "config.json").read_text())
        del stated["talker_config"][name]
        (copy / "config.json").write_text(json.dumps(stated))
        with pytest.raises(config.ConfigError, match=f"talker_config lacks {name}"):
            config.load_config(copy)

    def test_a_speech_tokenizer_of_other_rates_is_refused(self, copy):
        assert config.speech_tokenizer_config(copy)["decode_upsample_rate"] == 1_920
        path = copy / "speech_tokenizer" / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"decode_upsample_rate": 960}))
        with pytest.raises(config.ConfigError, match="decode_upsample_rate is 960"):
            config.speech_tokenizer_config(copy)

    def test_what_is_no_json_is_named(self, copy):
        (copy / "config.json").write_text("{")
        with pytest.raises(config.ConfigError, match="is not JSON"):
            config.load_config(copy)
        (copy / "config.json").unlink()
        with pytest.raises(config.ConfigError, match="is missing"):
            config.load_config(copy)


def test_every_tensor_is_somebodys(base):
    """Only keys of the published prefixes, so that each loader can account for all it does not read."""
    talker = load_component(base, config.TOP)
    assert {name.split(".")[0] + "." for name in talker} == {config.TALKER_PREFIX, config.SPEAKER_ENCODER_PREFIX}
    sound = load_component(base, config.SPEECH_TOKENIZER)
    assert {name.split(".")[0] + "." for name in sound} == {config.DECODER_PREFIX, config.ENCODER_PREFIX}
