// A job's log drawn over time: what the talker drew, what the acoustic stage decoded, what there is to hear.

import { lanes, moments } from "./figures.js";

const LANES = [
  ["drawn", "Frames"],
  ["decoded", "Sound"],
  ["heard", "To hear"],
];
const TALL = 18;
const GAP = 8;
const TOP = 14; // of the moments' marks
const LEFT = 56; // of the lanes' names
const RIGHT = 8;

/** Draw the log into an <svg>, and tell it in words in `told`. */
export function drawTimeline(svg, told, log, rate) {
  const width = svg.clientWidth;
  const rows = lanes(log, rate);
  const marks = moments(log);
  const ends = [...LANES.flatMap(([name]) => rows[name].map(({ to }) => to)), ...marks.map(({ at }) => at)];
  const last = Math.max(0.1, ...ends);
  const x = (seconds) => LEFT + (seconds / last) * Math.max(1, width - LEFT - RIGHT);
  const bottom = TOP + LANES.length * (TALL + GAP);
  svg.setAttribute("viewBox", `0 0 ${width} ${bottom + 18}`);
  const drawn = LANES.flatMap(([name, label], row) => lane(name, label, rows[name], TOP + row * (TALL + GAP), x));
  svg.replaceChildren(...drawn);
  for (const { at, type, label } of marks) svg.append(mark(x(at), bottom - GAP, type, label));
  for (const second of ticks(last, width)) svg.append(...tick(second, x(second), bottom));
  told.textContent =
    `${rows.drawn.length} spans of frames drawn, ${rows.decoded.length} windows of sound decoded. ` +
    marks.map(({ at, label }) => `After ${at.toFixed(1)} s: ${label}.`).join(" ");
}

function lane(name, label, pieces, y, x) {
  const title = element("text", { x: 0, y: y + TALL - 5, class: "name" }, label);
  return [
    title,
    ...pieces.map(({ from, to, label: what }) => {
      const wide = Math.max(1.5, x(to) - x(from) - 1);
      const corner = Math.min(3, wide / 2);
      const rect = element("rect", { x: x(from), y, width: wide, height: TALL, rx: corner, class: name });
      rect.append(element("title", {}, `${what}, ${from.toFixed(2)} to ${to.toFixed(2)} s`));
      return rect;
    }),
  ];
}

function mark(x, bottom, type, label) {
  const group = element("g", { class: `mark ${type.replace(".", "-")}` });
  group.append(
    element("title", {}, label),
    element("line", { x1: x, x2: x, y1: 6, y2: bottom }),
    element("circle", { cx: x, cy: 5, r: 3.5 }),
  );
  return group;
}

function tick(second, x, y) {
  const anchor = second === 0 ? "start" : "middle";
  return [
    element("line", { x1: x, x2: x, y1: y - GAP + 2, y2: y, class: "tick" }),
    element("text", { x, y: y + 13, "text-anchor": anchor, class: "name" }, `${second} s`),
  ];
}

/** About one tick for every 80 pixels, at round seconds. */
function ticks(last, width) {
  const most = Math.max(2, Math.floor((width - LEFT) / 80));
  const step = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300].find((s) => last / s <= most) ?? 600;
  return Array.from({ length: Math.floor(last / step) + 1 }, (_, i) => Number((i * step).toFixed(1)));
}

function element(name, attributes, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text) made.textContent = text;
  return made;
}
