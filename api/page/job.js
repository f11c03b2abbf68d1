// One job as the api tells it: its view, its sound from the first chunk on, its log.

import { messages } from "./sse.js";

const ENDS = ["completed", "failed", "cancelled"];
const LOOK_MS = [200, 1000]; // between looks at the log of a job that is under way: with news, and without

/**
 * Tells "view", "chunk" (detail: {index, pcm}), "log", "end", and "trouble" (detail: the error) where it cannot be
 * followed. `chunks` are interleaved Int16Arrays, in order, each once; `log` the events so far.
 */
export class Job extends EventTarget {
  view = null;
  chunks = [];
  log = [];
  #server;
  #leaving = new AbortController();

  constructor(server, id) {
    super();
    this.#server = server;
    this.id = id;
    this.path = `/v1/jobs/${id}`;
  }

  get ended() {
    return ENDS.includes(this.view?.status);
  }

  /** Follow it to its end, or until `leave`. */
  async follow() {
    const { signal } = this.#leaving;
    try {
      this.#see(await this.#server.call(this.path, { signal }));
      await Promise.all([this.#listen(signal), this.#read(signal)]);
    } catch (error) {
      if (!signal.aborted) this.#tell("trouble", error);
      this.leave();
    }
  }

  leave() {
    this.#leaving.abort();
  }

  async cancel() {
    this.#see(await this.#server.call(this.path, { method: "DELETE" }));
  }

  /** Sound, taken up where it broke off: nothing is lost or repeated. */
  async #listen(signal) {
    for (let last = null, tries = 0, over = false; !over; ) {
      const headers = last === null ? {} : { "Last-Event-ID": last };
      const answer = await this.#server.fetch(`${this.path}/stream?format=sse`, { headers, signal });
      try {
        for await (const message of messages(answer.body)) {
          [last, tries] = [message.id ?? last, 0];
          over = this.#hear(message) || over;
        }
      } catch (error) {
        if (signal.aborted) throw error;
      }
      if (!over) await this.#server.pause(tries++, signal);
    }
    this.#tell("end");
  }

  /** Whether it was the last message. */
  #hear({ event, data }) {
    const said = JSON.parse(data);
    if (event === "expired") {
      this.#tell("trouble", new Error(said.error.message));
      this.leave();
      return true;
    }
    if (ENDS.includes(event)) {
      this.#see(said);
      return true;
    }
    if (event === "audio.chunk" && said.index === this.chunks.length) {
      this.chunks.push(samples(said.audio));
      this.#tell("chunk", { index: said.index, pcm: this.chunks.at(-1) });
    }
    return false;
  }

  async #read(signal) {
    for (;;) {
      const [over, seen] = [this.ended, this.chunks.length];
      const after = this.log.at(-1)?.seq ?? 0;
      const { data } = await this.#server.call(`${this.path}/events?after=${after}`, { signal });
      if (data.length) {
        this.log.push(...data);
        this.#tell("log");
      }
      if (over) return;
      if (!this.ended && this.view.status !== "sounding") {
        const view = await this.#server.call(this.path, { signal });
        if (!this.ended) this.#see(view);
      }
      await this.#news(seen, signal);
    }
  }

  /** Wait for more than `seen` chunks, or for a while. Throws AbortError. */
  async #news(seen, signal) {
    const [least, most] = LOOK_MS;
    for (let waited = 0; waited < most && (waited < least || this.chunks.length === seen); waited += least) {
      if (this.ended) return;
      await new Promise((resolve) => setTimeout(resolve, least));
      signal.throwIfAborted();
    }
  }

  #see(view) {
    this.view = { ...this.view, ...view };
    this.#tell("view");
  }

  #tell(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }
}

/** Interleaved 16-bit little-endian PCM, out of base64. */
function samples(base64) {
  const text = atob(base64);
  const bytes = new DataView(new ArrayBuffer(text.length));
  for (let i = 0; i < text.length; i++) bytes.setUint8(i, text.charCodeAt(i));
  const pcm = new Int16Array(text.length / 2);
  for (let i = 0; i < pcm.length; i++) pcm[i] = bytes.getInt16(2 * i, true);
  return pcm;
}
