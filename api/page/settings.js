// A request's settings beside what is spoken: a field for each that the page knows. Left empty, the model's own stands.

const SETTINGS = [
  { name: "seed", label: "Seed", kind: "whole", empty: "drawn" },
  { name: "language", label: "Language", kind: "text", empty: "Auto" },
  { name: "max_new_tokens", label: "Most frames", kind: "whole", empty: "all it needs" },
  { name: "temperature", label: "Temperature", kind: "decimal" },
  { name: "top_p", label: "Top p", kind: "decimal" },
  { name: "top_k", label: "Top k", kind: "whole" },
  { name: "repetition_penalty", label: "Repetition penalty", kind: "decimal" },
  { name: "do_sample", label: "Codes", kind: "flag", yes: "drawn", no: "the likeliest" },
  { name: "subtalker_temperature", label: "Temperature, a frame’s other codes", kind: "decimal" },
  { name: "subtalker_top_p", label: "Top p, a frame’s other codes", kind: "decimal" },
  { name: "subtalker_top_k", label: "Top k, a frame’s other codes", kind: "whole" },
  { name: "first_chunk_frames", label: "Frames of the first sound", kind: "whole" },
  { name: "async_chunk", label: "Sound comes", kind: "flag", yes: "while it is made", no: "once all is drawn" },
  { name: "non_streaming_mode", label: "It is read", kind: "flag", yes: "as a whole first", no: "as it is spoken" },
  { name: "x_vector_only_mode", label: "What is cloned", kind: "flag", yes: "the colour alone", no: "all, in context" },
];
const EMPTY = "the model’s";

/** A field for each, hidden until a model is chosen that has it. */
export function addSettings(grid) {
  grid.append(...SETTINGS.map((setting) => field(setting)));
}

/** What a control says, as the request is to have it. */
export function typed({ value, dataset }) {
  if (dataset.kind === "flag") return value === "true";
  return ["whole", "decimal"].includes(dataset.kind) ? number(value.trim()) : value;
}

function number(text) {
  const value = Number(text);
  return Number.isFinite(value) ? value : text; // for the server to say what is wrong with it
}

function field(setting) {
  const made = element("p", { className: "field", hidden: true });
  made.dataset.field = setting.name;
  const hint = element("span", { className: "hint", id: `${setting.name}-hint` });
  const error = element("span", { className: "error", id: `${setting.name}-error` });
  const label = element("label", { htmlFor: setting.name, textContent: setting.label });
  made.append(label, control(setting), hint, error);
  return made;
}

function control({ name, kind, empty = EMPTY, yes, no }) {
  const made = element(kind === "flag" ? "select" : "input", { id: name, name });
  made.dataset.kind = kind;
  made.setAttribute("aria-describedby", `${name}-hint ${name}-error`);
  if (kind === "flag") made.append(new Option(empty, ""), new Option(yes, "true"), new Option(no, "false"));
  else made.placeholder = empty;
  if (kind === "whole") made.inputMode = "numeric";
  if (kind === "decimal") made.inputMode = "decimal";
  return made;
}

function element(tag, properties) {
  return Object.assign(document.createElement(tag), properties);
}
