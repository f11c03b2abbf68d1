// A recording by the microphone, as a WAV file: one channel, 16 bits.

const RATE = 48_000;
const LONGEST_S = 30; // a clone gains nothing from more
const HEAD = 44; // bytes before a WAV's samples

/** Browsers lend the microphone only to pages that came over https or from this machine. */
export const canRecord = Boolean(navigator.mediaDevices?.getUserMedia && window.MediaRecorder);

/** Tells "second" (detail: whole seconds so far) while it goes on. */
export class Recording extends EventTarget {
  #recorder;
  #pieces = [];
  #over;
  #timer;

  /** Throws DOMException where there is no microphone, or none is lent. */
  static async begin() {
    return new Recording(await navigator.mediaDevices.getUserMedia({ audio: { echoCancellation: false } }));
  }

  constructor(stream) {
    super();
    const began = performance.now();
    this.#recorder = new MediaRecorder(stream);
    this.#recorder.addEventListener("dataavailable", ({ data }) => this.#pieces.push(data));
    this.#over = new Promise((resolve) => this.#recorder.addEventListener("stop", resolve));
    this.#timer = setInterval(() => {
      const seconds = Math.floor((performance.now() - began) / 1000);
      this.dispatchEvent(new CustomEvent("second", { detail: seconds }));
      if (seconds >= LONGEST_S) this.stop();
    }, 250);
    this.#recorder.start();
  }

  stop() {
    clearInterval(this.#timer);
    if (this.#recorder.state !== "inactive") this.#recorder.stop();
    for (const track of this.#recorder.stream.getTracks()) track.stop();
  }

  /** The WAV, once it is over. Throws DOMException where nothing was recorded. */
  async file() {
    await this.#over;
    const recorded = await new Blob(this.#pieces).arrayBuffer();
    const sound = await new OfflineAudioContext(1, 1, RATE).decodeAudioData(recorded);
    return new File([wav(mono(sound))], "recording.wav", { type: "audio/wav" });
  }
}

/** The mean of its channels. */
function mono(sound) {
  const mixed = new Float32Array(sound.length);
  for (let channel = 0; channel < sound.numberOfChannels; channel++) {
    const samples = sound.getChannelData(channel);
    for (let i = 0; i < mixed.length; i++) mixed[i] += samples[i] / sound.numberOfChannels;
  }
  return mixed;
}

/** Of samples within -1 and 1. */
function wav(samples) {
  const file = new DataView(new ArrayBuffer(HEAD + 2 * samples.length));
  const text = (at, letters) => [...letters].forEach((letter, i) => file.setUint8(at + i, letter.charCodeAt(0)));
  text(0, "RIFF");
  file.setUint32(4, file.byteLength - 8, true);
  text(8, "WAVEfmt ");
  file.setUint32(16, 16, true); // bytes of the format
  file.setUint16(20, 1, true); // PCM
  file.setUint16(22, 1, true); // channels
  file.setUint32(24, RATE, true);
  file.setUint32(28, 2 * RATE, true); // bytes a second
  file.setUint16(32, 2, true); // bytes of a frame
  file.setUint16(34, 16, true); // bits
  text(36, "data");
  file.setUint32(40, 2 * samples.length, true);
  samples.forEach((sample, i) => file.setInt16(HEAD + 2 * i, Math.max(-1, Math.min(sample, 1)) * 32767, true));
  return file;
}
