// Runs before the page's own code: `starts` has every piece of sound that the page schedules, in frames, but
// for what it took back.
// `ear.listen()` records what comes out of the open job's playback.
const BLOCK = 128; // frames that the browser computes at once
window.starts = [];
const start = AudioBufferSourceNode.prototype.start;
AudioBufferSourceNode.prototype.start = function (when) {
  const { length, sampleRate } = this.buffer;
  window.starts.push({ node: this, when: when * sampleRate, samples: length });
  return start.call(this, when);
};
const stop = AudioBufferSourceNode.prototype.stop;
AudioBufferSourceNode.prototype.stop = function () {
  window.starts = window.starts.filter(({ node }) => node !== this);
  return stop.call(this);
};

window.ear = {
  blocks: new Map(),

  async listen() {
    const { listener } = await import("/page/main.js");
    const { context, output, channels } = listener.playback;
    await context.audioWorklet.addModule("/recorder.js");
    const options = { channelCount: channels, channelCountMode: "explicit" };
    const recorder = new AudioWorkletNode(context, "recorder", options);
    recorder.port.onmessage = ({ data }) => this.blocks.set(data.frame, data.channels);
    output.connect(recorder);
    recorder.connect(context.destination);
  },

  /** Whether anything but silence has come out. */
  get loud() {
    return [...this.blocks.values()].some((channels) => channels.some((channel) => channel.some((x) => x !== 0)));
  },

  /** Whether all that was scheduled has come out. */
  get whole() {
    return window.starts.every(({ when, samples }) => this.blocks.has(block(Math.round(when) + samples - 1)));
  },

  /** {sound, strays}: what came out where it was scheduled, as base64 of int16, and how many samples did elsewhere. */
  heard() {
    const sound = [];
    for (const { when, samples } of window.starts) {
      for (let at = Math.round(when); at < Math.round(when) + samples; at++) {
        for (const channel of this.blocks.get(block(at))) {
          sound.push(Math.round(channel[at % BLOCK] * 32768));
          channel[at % BLOCK] = 0;
        }
      }
    }
    const left = [...this.blocks.values()].flat().flatMap((channel) => [...channel]);
    return { sound: base64(sound), strays: left.filter((x) => x !== 0).length };
  },

  /** All sound that the page has of the open job. */
  async pcm() {
    const { listener } = await import("/page/main.js");
    return base64(listener.job.chunks.flatMap((pcm) => [...pcm]));
  },
};

function block(frame) {
  return frame - (frame % BLOCK);
}

function base64(samples) {
  const bytes = new Uint8Array(Int16Array.from(samples).buffer);
  return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
}
