// Sound, chunk after chunk without a seam. A context of the sound's own rate resamples nothing, and every chunk begins
// on the frame at which the one before it ends.

const LEAD_S = 0.1; // from deciding to play a chunk to its first sample, where nothing sounds yet
const LATE_S = 0.02; // the browser may have computed so much already
const AHEAD_S = 10; // scheduled at least, where there is so much: a float32 copy of what is scheduled is held
const REFILL_S = 1; // waited for once sound has run dry, or each chunk would be followed by silence

const contexts = new Map();

/** The context of a rate. Some browsers let it sound only if it was first asked for while a button was pressed. */
export function contextOf(rate) {
  if (!contexts.has(rate)) contexts.set(rate, new AudioContext({ sampleRate: rate }));
  return contexts.get(rate);
}

/** Tells "change" whenever `state` may have changed. Places and lengths in samples per channel. */
export class Playback extends EventTarget {
  #chunks = []; // {pcm, start, samples}
  #sources = []; // {node, time, from, until}: scheduled, and not over
  #next = 0; // the first sample that is not scheduled
  #free = 0; // the context's frame at which it may begin
  #place = 0; // where it stands while nothing is scheduled
  #wanted = false;
  #whole = false;
  #onState = () => this.#changed();

  constructor(rate, channels) {
    super();
    this.rate = rate;
    this.channels = channels;
    this.samples = 0;
    this.context = contextOf(rate);
    this.output = this.context.createGain();
    this.output.connect(this.context.destination);
    this.context.addEventListener("statechange", this.#onState);
  }

  /** The next chunk: interleaved Int16Array. */
  add(pcm) {
    const samples = pcm.length / this.channels;
    this.#chunks.push({ pcm, start: this.samples, samples });
    this.samples += samples;
    this.#schedule();
    this.#changed();
  }

  /** No more chunks will come. */
  end() {
    this.#whole = true;
    this.#schedule();
    this.#finish();
    this.#changed();
  }

  play() {
    if (this.state === "ended") this.#moveTo(0);
    this.#wanted = true;
    this.context.resume();
    this.#schedule();
    this.#changed();
  }

  pause() {
    this.#wanted = false;
    this.context.suspend();
    this.#changed();
  }

  stop() {
    this.pause();
    this.#moveTo(0);
    this.#changed();
  }

  seek(sample) {
    this.#moveTo(Math.max(0, Math.min(Math.round(sample), this.samples)));
    this.#schedule();
    this.#finish();
    this.#changed();
  }

  close() {
    this.#wanted = false;
    this.#clear();
    this.output.disconnect();
    this.context.removeEventListener("statechange", this.#onState);
  }

  /** "empty", "playing", "waiting" for sound, "paused", or "ended". */
  get state() {
    if (this.#whole && this.position >= this.samples) return this.samples ? "ended" : "empty";
    if (!this.#wanted || this.context.state !== "running") return this.samples ? "paused" : "empty";
    return this.#sources.length ? "playing" : "waiting";
  }

  get position() {
    const now = this.context.currentTime;
    const heard = this.#sources.findLast((source) => source.time <= now);
    if (!heard) return this.#sources[0]?.from ?? this.#place;
    return Math.min(heard.until, heard.from + Math.floor((now - heard.time) * this.rate));
  }

  #schedule() {
    if (!this.#wanted) return;
    const ready = this.samples - this.#next;
    const ranDry = this.#free > 0 && this.#free <= this.#now;
    if (ranDry && !this.#whole && ready < REFILL_S * this.rate) return;
    for (const chunk of this.#chunks) {
      if (this.#free - this.#now >= AHEAD_S * this.rate) return;
      if (chunk.start + chunk.samples > this.#next) this.#lay(chunk);
    }
  }

  /** Schedule what is left of a chunk right behind all that is scheduled. */
  #lay(chunk) {
    const buffer = this.#buffer(chunk, this.#next - chunk.start);
    for (;;) {
      if (this.#free < this.#now + LATE_S * this.rate) this.#free = this.#now + Math.ceil(LEAD_S * this.rate);
      const node = this.context.createBufferSource();
      node.buffer = buffer;
      node.connect(this.output);
      node.start(this.#free / this.rate);
      if (this.#free > this.#now) {
        this.#keep(node, chunk.start + chunk.samples);
        return;
      }
      node.stop(); // this thread was held up: it would begin later than said, and sound into the next one
      node.disconnect();
    }
  }

  #keep(node, until) {
    const source = { node, time: this.#free / this.rate, from: this.#next, until };
    node.onended = () => this.#over(source);
    this.#sources.push(source);
    this.#free += until - this.#next;
    this.#next = until;
  }

  /** The frame that the context has come to. */
  get #now() {
    return Math.ceil(this.context.currentTime * this.rate);
  }

  #buffer({ pcm, samples }, skipped) {
    const buffer = this.context.createBuffer(this.channels, samples - skipped, this.rate);
    for (let channel = 0; channel < this.channels; channel++) {
      const out = buffer.getChannelData(channel);
      for (let i = 0, at = skipped * this.channels + channel; i < out.length; i++, at += this.channels) {
        out[i] = pcm[at] / 32768;
      }
    }
    return buffer;
  }

  #over(source) {
    this.#sources = this.#sources.filter((other) => other !== source);
    source.node.disconnect();
    this.#place = source.until;
    this.#schedule();
    this.#finish();
    this.#changed();
  }

  #finish() {
    if (this.#wanted && this.state === "ended") this.#wanted = false;
  }

  #moveTo(sample) {
    this.#clear();
    this.#next = this.#place = sample;
  }

  #clear() {
    for (const { node } of this.#sources) {
      node.onended = null;
      node.stop();
      node.disconnect();
    }
    this.#sources = [];
    this.#free = 0;
  }

  #changed() {
    this.dispatchEvent(new Event("change"));
  }
}
