// The form: what can be asked of the chosen model, what was typed, and what was wrong with it.

const DRAFT = "songline.draft";
const form = document.getElementById("order");
const { model, input, instructions, voice } = form.elements;

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
  model.replaceChildren(...models.map(({ id }) => new Option(id)));
  model.closest(".field").hidden = models.length === 0;
  for (const control of controls()) {
    if (control !== voice && drafted[control.name] !== undefined) control.value = drafted[control.name];
  }
  if (!model.value && models.length) model.value = models[0].id;
  fit(drafted.voice);
}

/** The request's body as JSON. A seed goes as it was typed: it may have more digits than a number holds. */
export function body() {
  const fields = {};
  let seed = "";
  for (const control of controls()) {
    const value = control.value.trim();
    if (!value || control.closest(".field").hidden) continue;
    if (control.name === "seed" && /^\d+$/.test(value)) seed = `,"seed":${value.replace(/^0+(?=\d)/, "")}`;
    else fields[control.name] = control.dataset.kind === "number" ? number(value) : control.value;
  }
  return JSON.stringify({ ...fields, input: input.value }).replace(/}$/, `${seed}}`);
}

/** Show an error beside its field, or under the button where it is about none of them. */
export function showError({ param, message }) {
  clearErrors();
  const control = param && Object.hasOwn(form.elements, param) ? form.elements[param] : null;
  if (!control || control.closest(".field").hidden) {
    document.getElementById("form-error").textContent = message;
    return;
  }
  if (control.closest("details")) control.closest("details").open = true;
  document.getElementById(`${param}-error`).textContent = message;
  control.setAttribute("aria-invalid", "true");
  control.focus();
}

export function clearErrors() {
  for (const told of form.querySelectorAll(".error")) told.textContent = "";
  for (const control of controls()) control.removeAttribute("aria-invalid");
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

function number(text) {
  const value = Number(text);
  return Number.isFinite(value) ? value : text; // for the server to say what is wrong with it
}

/** Fit the form to the chosen model. */
function fit(wanted = voice.value) {
  const chosen = chosenModel();
  if (!chosen) return;
  const speaks = chosen.fields.includes("language");
  for (const field of form.querySelectorAll("[data-field]")) {
    const name = field.dataset.field;
    field.hidden = !chosen.fields.includes(name) && name !== "model";
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
  document.getElementById("voice-hint").textContent =
    names.length || !chosen.clones ? "" : "This model clones a recording: upload one to POST /v1/audio/voices.";
}

function group(label, members) {
  if (!members.length) return [];
  const made = document.createElement("optgroup");
  made.label = label;
  made.append(...members.map(({ id }) => new Option(id)));
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

form.addEventListener("input", (event) => {
  const kept = Object.fromEntries(controls().map(({ name, value }) => [name, value]));
  sessionStorage.setItem(DRAFT, JSON.stringify(kept));
  const told = document.getElementById(`${event.target.name}-error`);
  if (told) told.textContent = "";
  event.target.removeAttribute("aria-invalid");
});
model.addEventListener("change", () => fit());
for (const area of [input, instructions]) {
  area.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
}
for (const control of controls()) {
  if (!control.hasAttribute("aria-describedby")) control.setAttribute("aria-describedby", `${control.name}-error`);
}
