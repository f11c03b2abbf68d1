"""Which recordings are taken, and what is said of the others."""

from __future__ import annotations

import io

import numpy as np
import pytest
import soundfile

from broker_schemas.recordings import BadRecording, RecordingLimits, read_recording


def tone(seconds: float = 1.0, rate: int = 24_000, level: float = 0.3) -> np.ndarray:
    return (level * np.sin(2 * np.pi * 440 * np.arange(round(seconds * rate)) / rate)).astype(np.float32)


def file(pcm: np.ndarray, rate: int = 24_000, format: str = "WAV", subtype: str | None = None) -> bytes:
    written = io.BytesIO()
    soundfile.write(written, pcm, rate, format=format, subtype=subtype)
    return written.getvalue()


@pytest.mark.parametrize(
    ("format", "subtype", "closeness"),
    [("WAV", "FLOAT", 0), ("WAV", "PCM_16", 1e-4), ("WAVEX", "PCM_24", 1e-6), ("FLAC", "PCM_16", 1e-4),
     ("OGG", "VORBIS", None), ("OGG", "OPUS", None), ("MP3", None, None)],
)  # fmt: skip
def test_the_formats_that_people_have(format, subtype, closeness):
    pcm, rate = read_recording(file(tone(), format=format, subtype=subtype))
    assert (pcm.dtype, pcm.ndim, rate) == (np.float32, 1, 24_000)
    if closeness is not None:
        assert np.abs(pcm - tone()).max() <= closeness
    else:  # the lossy ones shift and pad
        assert abs(len(pcm) - 24_000) < 3_000
        assert np.abs(np.fft.rfft(pcm[:24_000])).argmax() == 440 and pcm.std() == pytest.approx(tone().std(), rel=0.1)


def test_channels_are_averaged():
    two = np.stack([tone(), 0.5 * tone()], axis=1)
    pcm, _ = read_recording(file(two, subtype="FLOAT"))
    assert np.array_equal(pcm, two.mean(axis=1))


def test_a_recording_longer_than_a_block_is_read_whole():
    sound = tone(7.3, 44_100)
    assert np.array_equal(read_recording(file(sound, 44_100, subtype="FLOAT"))[0], sound)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "cannot be read"),
        (b"not a sound at all" * 100, "cannot be read"),
        (file(tone())[:60], "0.00 s long|cannot be read"),
        (file(tone(), format="AIFF"), "is AIFF: send WAV"),
        (file(tone(0.49)), "0.49 s long: send at least 0.5 s"),
        (file(tone(60.1, 8_000), 8_000), "over 60 s long"),
        (file(tone(1, 4_000), 4_000), "4000 samples a second"),
        (file(np.zeros(24_000)), "is silent"),
        (file(tone(level=0.0005)), "is silent"),
        (file(32_768 * tone(), subtype="FLOAT"), "scale them"),
        (file(np.full(24_000, np.nan), subtype="FLOAT"), "scale them"),
        (file(np.full(24_000, np.inf), subtype="FLOAT"), "scale them"),
        (file(np.zeros((24_000, 9))), "9 channels"),
    ],
)
def test_what_cannot_be_used_is_refused_with_what_to_send(content, complaint):
    with pytest.raises(BadRecording, match=complaint):
        read_recording(content)


def test_a_large_file_is_refused_unread():
    with pytest.raises(BadRecording, match="at most 1000"):
        read_recording(b"\0" * 1001, RecordingLimits(max_bytes=1000))


def test_a_small_file_that_unpacks_to_hours_is_not_unpacked(monkeypatch):
    hour = file(np.zeros((3600 * 8_000, 1), np.int16), 8_000, "FLAC")
    assert len(hour) < 1 << 20
    reads = []
    read = soundfile.SoundFile.read
    monkeypatch.setattr(soundfile.SoundFile, "read", lambda *args, **kw: reads.append(1) or read(*args, **kw))
    with pytest.raises(BadRecording, match="over 60 s"):
        read_recording(hour)
    assert len(reads) < 10
