// The form: what can be asked of the chosen model, what was typed, and what was wrong with it.

import { FormErrors } from "./errors.js";
import { addSettings, typed } from "./settings.js";

addSettings(document.getElementById("settings"));

const DRAFT = "songline.draft";
const form = document.getElementById("order");
const { model, input, instructions, voice } = form.elements;
const ownVoices = document.getElementById("own-voices");
const hint = document.getElementById("voice-hint");

/** What is wrong with what was typed. */
export const errors = new FormErrors(form, document.getElementById("form-error"));

let models = [];
let voices = [];

/** The model that is chosen, as GET /v1/models shows it. */
export function chosenModel() {
  return models.find(({ id }) => id === model.value);
}

/** Offer what the server has. */
export function offer(served, spoken) {
  models = served;
  voices = spoken;
  const drafted = draft();
  model.replaceChildren(...models.map(({ id }) => new Option(id, id)));
  model.closest(".field").hidden = models.length === 0;
  for (const control of controls()) {
    if (control !== voice && drafted[control.name] !== undefined) control.value = drafted[control.name];
  }
  if (!model.value && models.length) model.value = models[0].id;
  fit(drafted.voice);
}

/** Offer the voices that there are now. */
export function offerVoices(spoken) {
  voices = spoken;
  fit();
}

/** Have the next job speak so, and tell why. */
export function chooseVoice(name, why) {
  voice.value = name;
  voice.dispatchEvent(new Event("input", { bubbles: true }));
  hint.textContent = why;
  voice.focus();
}

/** The request's body as JSON. A seed goes as it was typed: it may have more digits than a number holds. */
export function body() {
  const fields = {};
  let seed = "";
  for (const control of controls()) {
    const value = control.value.trim();
    if (!value || control.closest(".field").hidden) continue;
    if (control.name === "seed" && /^\d+$/.test(value)) seed = `,"seed":${value.replace(/^0+(?=\d)/, "")}`;
    else fields[control.name] = typed(control);
  }
  return JSON.stringify({ ...fields, input: input.value }).replace(/}$/, `${seed}}`);
}

/** Call `order` when the form is sent, by button or keys. */
export function onOrder(order) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    order();
  });
}

function controls() {
  return [...form.elements].filter(({ name }) => name);
}

/** Fit the form to the chosen model. */
function fit(wanted = voice.value) {
  const chosen = chosenModel();
  if (!chosen) return;
  const speaks = chosen.fields.includes("language");
  for (const field of form.querySelectorAll("[data-field]")) {
    const name = field.dataset.field;
    field.hidden = !chosen.fields.includes(name);
  }
  label("input", speaks ? "Text" : "Lyrics");
  input.placeholder = speaks ? "The river wrote a letter to the sea." : "[verse]\nThe river wrote a letter to the sea";
  label("instructions", speaks ? "How it should sound (may be left empty)" : "Caption: style, instruments, voice");
  document.getElementById("make").textContent = speaks ? "Speak" : "Sing";
  document.getElementById("max_new_tokens-hint").textContent = `${chosen.frame_rate} a second`;
  fitVoices(chosen, wanted);
}

function fitVoices(chosen, wanted) {
  const own = voices.filter(({ kind, model: of }) => kind === "built-in" && of === chosen.id);
  const uploaded = chosen.clones ? voices.filter(({ kind }) => kind === "uploaded") : [];
  voice.closest(".field").hidden = !own.length && !chosen.clones;
  const options = [...group("The model’s", own), ...group("Uploaded", uploaded)];
  voice.replaceChildren(...(options.length ? options : [new Option("none yet", "")]));
  const names = [...own, ...uploaded].map(({ id }) => id);
  if (names.includes(wanted)) voice.value = wanted;
  ownVoices.hidden = !chosen.clones;
  hint.textContent = names.length || !chosen.clones ? "" : "This model clones a recording: upload one.";
}

function group(label, members) {
  if (!members.length) return [];
  const made = document.createElement("optgroup");
  made.label = label;
  made.append(...members.map(({ id }) => new Option(id, id)));
  return [made];
}

function label(name, text) {
  form.querySelector(`label[for=${name}]`).textContent = text;
}

function draft() {
  try {
    return JSON.parse(sessionStorage.getItem(DRAFT)) ?? {};
  } catch {
    return {};
  }
}

form.addEventListener("input", () => {
  const kept = Object.fromEntries(controls().map(({ name, value }) => [name, value]));
  sessionStorage.setItem(DRAFT, JSON.stringify(kept));
});
model.addEventListener("change", () => fit());
voice.addEventListener("change", () => (hint.textContent = ""));
for (const area of [input, instructions]) {
  area.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
}
