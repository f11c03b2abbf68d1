// The panel of the job that is open: its sound, its state, its figures, its log.

import { figures, told } from "./figures.js";
import { Job } from "./job.js";
import { Playback } from "./playback.js";
import { drawTimeline } from "./timeline.js";
import { Waveform } from "./waveform.js";

const STATES = {
  queued: "Waiting for its turn",
  talking: "Being written: no sound yet",
  sounding: "Being made",
  completed: "Completed",
  failed: "Failed",
  cancelled: "Cancelled",
};
const NOTHING = document.getElementById("state").textContent;
const BLOCKED_MS = 500; // what is to play, and does not by then, waits for a person
const at = (id) => document.getElementById(id);
const play = at("play");
const stop = at("stop");
const cancel = at("cancel");
const position = at("position");
const downloads = [...document.querySelectorAll("[data-format]")];

/** Tells "seen" (detail: its view) whenever there is news of the job that is open, and "ended" when it is over. */
export class Listener extends EventTarget {
  job = null;
  playback = null;
  #server;
  #waveform = new Waveform(at("waveform"));
  #playAtOnce = false; // until a person says otherwise
  #blocked = false;
  #drawing = 0;

  constructor(server) {
    super();
    this.#server = server;
    play.addEventListener("click", () => this.#toggle());
    stop.addEventListener("click", () => this.#stop());
    cancel.addEventListener("click", () => this.#try(() => this.job.cancel()));
    position.addEventListener("input", () => this.playback?.seek(position.value * this.playback.rate));
    for (const button of downloads) button.addEventListener("click", () => this.#download(button));
    new ResizeObserver(() => this.#showLog()).observe(at("timeline"));
  }

  /**
   * Open a job, running or ended, and follow it. It is played from its beginning as soon as it sounds, if it is running,
   * or `play` says so.
   */
  open(id, play = false) {
    this.#clear();
    at("opened").hidden = false;
    at("listen-error").textContent = "";
    say("Opening the job");
    const job = (this.job = new Job(this.#server, id));
    this.#playAtOnce = play;
    const hear = (type, heed) => job.addEventListener(type, (event) => job === this.job && heed(event.detail));
    hear("view", () => this.#showView());
    hear("chunk", (chunk) => this.#add(chunk.pcm));
    hear("log", () => this.#showLog());
    hear("end", () => this.#end());
    hear("trouble", (error) => this.#trouble(error));
    job.follow();
  }

  /** Open none. */
  close() {
    this.#clear();
    at("opened").hidden = true;
    say(NOTHING);
    document.title = "Songline";
  }

  #clear() {
    this.job?.leave();
    this.playback?.close();
    this.job = this.playback = null;
    this.#blocked = false;
    for (const control of [play, stop, position, ...downloads]) control.disabled = true;
    for (const id of ["words", "facts", "log", "timeline"]) at(id).replaceChildren();
    for (const id of ["first-audio", "real-time", "so-far"]) at(id).textContent = "–";
    at("log-count").textContent = "0";
    for (const id of ["timeline-told", "copied"]) at(id).textContent = "";
    this.#waveform.clear(1);
    this.#showPlace();
  }

  get #playing() {
    return ["playing", "waiting"].includes(this.playback?.state);
  }

  #stop() {
    this.#playAtOnce = false;
    this.playback.stop();
  }

  #toggle() {
    this.#playAtOnce = false;
    if (this.#playing) this.playback.pause();
    else this.playback.play();
  }

  #showView() {
    const { view } = this.job;
    if (!this.playback && view.sample_rate) this.#prepare(view);
    this.#showState();
    cancel.hidden = this.job.ended;
    at("words").textContent = view.input;
    at("facts").replaceChildren(...facts(view));
    for (const button of downloads) button.disabled = view.status !== "completed" || !view.samples;
    document.title = `${STATES[view.status] ?? view.status} · Songline`;
    this.dispatchEvent(new CustomEvent("seen", { detail: view }));
  }

  #showState() {
    const { status, queue_position: place, error } = this.job.view;
    const ahead = status === "queued" && place > 0 ? `: ${place} ahead` : "";
    const why = error?.message ? `: ${error.message}` : "";
    const blocked = this.#blocked ? ". Press Play to hear it" : "";
    say(`${STATES[status] ?? status}${ahead}${why}${blocked}`, status);
  }

  #prepare({ sample_rate: rate, channels }) {
    this.playback = new Playback(rate, channels);
    this.playback.addEventListener("change", () => this.#showPlayback());
    this.#waveform.clear(rate);
    this.#playAtOnce ||= !this.job.ended;
  }

  #add(pcm) {
    this.playback.add(pcm);
    this.#waveform.add(pcm, this.playback.channels);
    if (this.#playAtOnce && this.job.chunks.length === 1) this.#playNow(this.playback);
  }

  /** Play without being asked to, which a browser may refuse without a word. */
  #playNow(playback) {
    playback.play();
    setTimeout(() => {
      if (playback !== this.playback || playback.state !== "paused" || !this.#playAtOnce) return;
      this.#blocked = true;
      this.#showState();
    }, BLOCKED_MS);
  }

  #end() {
    this.playback?.end();
    this.#waveform.end();
    this.#showPlace();
    this.dispatchEvent(new Event("ended"));
  }

  #trouble(error) {
    say("This job cannot be followed", "failed");
    at("listen-error").textContent = error.message;
    cancel.hidden = true;
  }

  #showPlayback() {
    const { state } = this.playback;
    if (this.#blocked && this.#playing) {
      this.#blocked = false;
      this.#showState();
    }
    play.disabled = stop.disabled = position.disabled = state === "empty";
    play.textContent = this.#playing ? "Pause" : state === "ended" ? "Play again" : "Play";
    this.#showPlace();
    if (state === "playing" && !this.#drawing) this.#drawing = requestAnimationFrame(() => this.#frame());
  }

  #frame() {
    this.#drawing = 0;
    this.#showPlace();
    if (this.playback?.state === "playing") this.#drawing = requestAnimationFrame(() => this.#frame());
  }

  #showPlace() {
    const { rate = 1, samples = 0 } = this.playback ?? {};
    const heard = this.playback?.position ?? 0;
    const seconds = heard / rate;
    this.#waveform.heard = heard;
    position.max = this.#waveform.span;
    position.value = seconds;
    position.setAttribute("aria-valuetext", `${clock(seconds)} of ${clock(samples / rate)}`);
    at("clock").textContent = `${clock(seconds)} / ${clock(samples / rate)}`;
  }

  #showLog() {
    if (!this.job?.log.length || !this.playback) return;
    const { log } = this.job;
    const { firstAudio, realTimeFactor, soundSoFar } = figures(log, this.playback.rate);
    at("first-audio").textContent = firstAudio === null ? "–" : `${firstAudio.toFixed(2)} s`;
    at("real-time").textContent = realTimeFactor === null ? "–" : realTimeFactor.toFixed(2);
    at("so-far").textContent = soundSoFar === null ? "–" : `${soundSoFar.toFixed(2)} s`;
    drawTimeline(at("timeline"), at("timeline-told"), log, this.playback.rate);
    at("log-count").textContent = log.length;
    at("log").append(...log.slice(at("log").childElementCount).map((event) => row(event, log[0].at)));
  }

  async #download(button) {
    const { format } = button.dataset;
    button.setAttribute("aria-busy", "true");
    await this.#try(async () => {
      const answer = await this.#server.fetch(`${this.job.path}/audio?format=${format}`);
      const link = document.createElement("a");
      link.href = URL.createObjectURL(await answer.blob());
      link.download = /filename="([^"]+)"/.exec(answer.headers.get("Content-Disposition"))?.[1] ?? `song.${format}`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
    });
    button.removeAttribute("aria-busy");
  }

  async #try(action) {
    at("listen-error").textContent = "";
    try {
      await action();
    } catch (error) {
      at("listen-error").textContent = error.message;
    }
  }
}

/** The state, for eyes and screen readers; told again only where it changed. */
function say(text, status = "") {
  const state = at("state");
  if (state.textContent !== text) state.textContent = text;
  state.dataset.status = status;
}

function facts(view) {
  const told = [["Model", view.model], ["Voice", view.voice], ["Seed", view.seed], ["Job", view.id]];
  return told
    .filter(([, value]) => value !== null && value !== undefined)
    .map(([name, value]) => {
      const made = document.createElement("span");
      const label = document.createElement("b");
      label.textContent = `${name} `;
      made.append(label, String(value));
      return made;
    });
}

function row(event, began) {
  const made = document.createElement("tr");
  const cells = [`${(event.at - began).toFixed(2)} s`, event.type, told(event)];
  for (const text of cells) made.insertCell().textContent = text;
  return made;
}

function clock(seconds) {
  const tenths = Math.round(seconds * 10);
  return `${Math.floor(tenths / 600)}:${((tenths % 600) / 10).toFixed(1).padStart(4, "0")}`;
}
