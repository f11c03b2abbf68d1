// The dialog of one's own voices: those there are, and another from a recording.

import { FormErrors } from "./errors.js";
import { Recording, canRecord } from "./recording.js";

const LARGEST = 40 << 20; // bytes: the api hears no more than this to its end, and so could not say what is wrong
const NONE = "You have none yet.";
const at = (id) => document.getElementById(id);
const dialog = at("voices");
const form = at("upload");
const told = at("voices-told");
const list = at("voice-list");
const progress = at("upload-progress");
const send = at("upload-send");
const heard = at("sample-heard");
const record = at("record");
const { audio_sample: sample } = form.elements;

/** Tells "listed" (detail: all voices there are) when they may be others, "chosen" and "kept" (detail: a name). */
export class VoicesDialog extends EventTarget {
  #server;
  #errors = new FormErrors(form, at("upload-error"));
  #recording = null;
  #closing = new AbortController();

  constructor(server) {
    super();
    this.#server = server;
    record.hidden = !canRecord;
    record.addEventListener("click", () => (this.#recording ? this.#recording.stop() : this.#record()));
    sample.addEventListener("change", () => hear(sample.files[0]));
    at("voices-close").addEventListener("click", () => dialog.close());
    dialog.addEventListener("close", () => dialog.open || this.#left()); // told late: it may be open again
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#upload();
    });
  }

  async open() {
    this.#left();
    this.#closing = new AbortController();
    this.#errors.clear();
    say("");
    dialog.showModal();
    await this.#try(async () => {
      const voices = await this.#list();
      if (!voices.length) say(NONE);
    });
  }

  #left() {
    this.#closing.abort();
    this.#recording?.stop();
    heard.pause();
  }

  /** Show those there are; the uploaded ones. */
  async #list() {
    const { data } = await this.#server.call("/v1/audio/voices", { signal: this.#closing.signal });
    const own = data.filter(({ kind }) => kind === "uploaded");
    list.replaceChildren(...own.map((voice) => this.#item(voice)));
    this.#tell("listed", data);
    return own;
  }

  #item(voice) {
    const item = document.createElement("li");
    const spoken = voice.ref_text ? `says “${voice.ref_text}”` : "the voice’s colour alone";
    const use = button("Use", voice.name, () => this.#choose(voice.name));
    const remove = button("Delete", voice.name, () => this.#delete(voice.name, remove));
    remove.className = "quiet";
    remove.addEventListener("blur", () => relabel(remove, "Delete", voice.name));
    item.append(
      span("what", voice.name),
      span("which", `${voice.seconds.toFixed(1)} s · ${spoken}`),
      span("which", `Consent: ${voice.consent}`),
      use,
      remove,
    );
    return item;
  }

  #choose(name) {
    dialog.close();
    this.#tell("chosen", name);
  }

  /** At the second press. */
  async #delete(name, remove) {
    if (remove.textContent === "Delete") {
      relabel(remove, "Really delete", name);
      say(`Press again to delete ${name}: jobs that wait to use it will fail.`);
      return;
    }
    await this.#try(async () => {
      const path = `/v1/audio/voices/${encodeURIComponent(name)}`;
      const gone = (error) => {
        if (error.status !== 404) throw error; // deleted by another try, or elsewhere
      };
      await this.#server.call(path, { method: "DELETE", signal: this.#closing.signal }).catch(gone);
      await this.#list();
      say(`${name} is deleted.`);
      at("voices-title").focus();
    });
  }

  async #upload() {
    if (send.getAttribute("aria-busy") === "true") return;
    this.#errors.clear();
    if (sample.files[0]?.size > LARGEST) {
      const size = Math.ceil(sample.files[0].size / (1 << 20));
      const message = `The recording has ${size} MiB: send a part of it, or an MP3.`;
      this.#errors.show({ param: "audio_sample", message });
      return;
    }
    send.setAttribute("aria-busy", "true");
    progress.removeAttribute("value");
    progress.hidden = false;
    say("The recording is being sent.");
    await this.#try(async () => {
      const voice = await this.#server.call("/v1/audio/voices", {
        method: "POST",
        body: filled(),
        signal: this.#closing.signal,
        onProgress: (share) => (progress.value = share),
      });
      await this.#list();
      form.reset();
      hear(null);
      dialog.close();
      this.#tell("kept", voice.name);
    });
    send.removeAttribute("aria-busy");
    progress.hidden = true;
  }

  async #record() {
    if (record.getAttribute("aria-busy") === "true") return;
    const { signal } = this.#closing;
    record.setAttribute("aria-busy", "true"); // until a person has lent the microphone
    await this.#try(async () => {
      this.#recording = await Recording.begin();
      this.#recording.addEventListener("second", ({ detail }) => (at("recorded").textContent = `${detail} s`));
      record.removeAttribute("aria-busy");
      record.textContent = "Stop recording";
      if (signal.aborted) this.#recording.stop();
      const file = await this.#recording.file();
      signal.throwIfAborted();
      const files = new DataTransfer();
      files.items.add(file);
      sample.files = files.files;
      hear(file);
      say("The recording is there: listen to it, and upload it.");
    });
    record.removeAttribute("aria-busy");
    record.textContent = "Record";
    at("recorded").textContent = "";
    this.#recording = null;
  }

  /** Do it, and say what was wrong; nothing where the dialog was closed meanwhile. */
  async #try(action) {
    const { signal } = this.#closing;
    try {
      await action();
    } catch (error) {
      if (signal.aborted) return;
      say("");
      this.#errors.show(error instanceof DOMException ? { param: "audio_sample", message: unrecorded(error) } : error);
    }
  }

  #tell(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }
}

/** The form as it is sent: without a file that nobody chose. */
function filled() {
  const body = new FormData(form);
  if (!sample.files.length) body.delete("audio_sample");
  return body;
}

/** Let a person hear the file before it is sent. */
function hear(file) {
  if (heard.src) URL.revokeObjectURL(heard.src);
  heard.hidden = !file;
  if (file) heard.src = URL.createObjectURL(file);
  else heard.removeAttribute("src");
}

function unrecorded({ name }) {
  if (name === "NotAllowedError") return "The microphone is not allowed to this page: allow it, or choose a file.";
  if (name === "NotFoundError") return "There is no microphone: choose a file.";
  return "Nothing was recorded: try again, or choose a file.";
}

function say(text) {
  told.textContent = text;
}

function button(text, name, press) {
  const made = document.createElement("button");
  made.type = "button";
  relabel(made, text, name);
  made.addEventListener("click", press);
  return made;
}

/** `name` tells those who cannot see its row what it is about. */
function relabel(made, text, name) {
  made.textContent = text;
  made.setAttribute("aria-label", `${text} ${name}`);
}

function span(className, text) {
  const made = document.createElement("span");
  made.className = className;
  made.textContent = text;
  return made;
}
