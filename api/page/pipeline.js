// The operator's page: queues and workers, asked for every two seconds while somebody looks.

import { tellAway } from "./away.js";
import { askKey } from "./key.js";
import { Server } from "./server.js";

const AGAIN_MS = 2000;
const SILENT_S = 5;
const MAIN = { talker: "draws", acoustic: "windows", archive: "archived" }; // what a worker's pace is told of
const server = new Server(askKey);
const totals = document.getElementById("totals");
const queues = document.getElementById("queues");
const workers = document.getElementById("workers");
const table = document.getElementById("workers-table");
const webhooks = document.getElementById("webhooks");
const webhooksPanel = document.getElementById("webhooks-panel");
const archive = document.getElementById("archive");
const archiveTold = document.getElementById("archive-told");
const archivePanel = document.getElementById("archive-panel");
const told = document.getElementById("told");
const rates = new Map(); // sample rate by model
let before = null; // what was told last
let timer = 0;

async function refresh() {
  clearTimeout(timer);
  try {
    const now = await server.call("/v1/pipeline");
    show(now, before);
    before = now;
  } catch (error) {
    told.textContent = error.message;
    return;
  }
  if (!document.hidden) timer = setTimeout(refresh, AGAIN_MS);
}

function show(now, earlier) {
  const paces = new Map(now.workers.map((worker) => [worker.worker, pace(worker, now, earlier)]));
  const serving = now.workers.filter(({ role }) => role !== "archive");
  const held = sum(serving, ({ held }) => held);
  totals.replaceChildren(
    figure("Live jobs", now.live_jobs),
    figure("Leases held", held),
    figure("Workers", serving.length),
  );
  queues.replaceChildren(...Object.entries(now.models).map(([model, queue]) => {
    const own = now.workers.filter((worker) => worker.model === model);
    const drawn = sum(own, ({ worker }) => paces.get(worker)?.draws ?? 0);
    const samples = sum(own, ({ worker }) => paces.get(worker)?.samples ?? 0);
    const sound = rates.has(model) ? `${(samples / rates.get(model)).toFixed(1)} s` : "–";
    return row(cell(model), cell(queue.queued), cell(queue.ready), cell(drawn.toFixed(1)), cell(earlier ? sound : "–"));
  }));
  showWebhooks(now.webhooks);
  workers.replaceChildren(...now.workers.map((worker) => shown(worker, paces.get(worker.worker))));
  table.hidden = !now.workers.length;
  showArchive(now.archive, now.workers.length > serving.length);
  told.textContent = serving.length ? "" : "No worker is alive: start songline talker and songline acoustic.";
}

/** Hidden where nobody ever asked for one. */
function showWebhooks({ owed, retrying, delivered, failed, given_up: givenUp }) {
  webhooksPanel.hidden = !(owed || delivered || failed || givenUp);
  webhooks.replaceChildren(
    figure("Wait to be told", owed),
    figure("Of these, tried in vain", retrying),
    figure("Delivered", delivered),
    figure("Attempts that failed", failed),
    figure("Given up", givenUp),
  );
}

/** Hidden where nobody ever archived. `alive`: whether somebody is there who does. */
function showArchive({ waiting, oldest_s: oldest, archived, failed }, alive) {
  archivePanel.hidden = !(alive || archived || failed);
  archive.replaceChildren(
    figure("Wait to be archived", waiting),
    figure("The first has waited, in seconds", Math.round(oldest)),
    figure("Archived", archived),
    figure("Attempts that failed", failed),
  );
  archiveTold.textContent = alive ? "" : "No archiver is alive: start songline archive.";
}

/** What a worker did a second since it was last looked at; null where it is new. */
function pace(worker, now, earlier) {
  const then = earlier?.workers.find((one) => one.worker === worker.worker);
  // Its counts are as old as its heartbeat is.
  const seconds = then ? (now.at - earlier.at) / 1000 - worker.silent_s + then.silent_s : 0;
  if (!(seconds > 0)) return then ? then.pace ?? null : null;
  const entries = Object.entries(worker.done).map(([what, number]) => [what, (number - (then.done[what] ?? 0)) / seconds]);
  worker.pace = Object.fromEntries(entries);
  return worker.pace;
}

function shown(worker, pace) {
  const name = cell(worker.worker);
  const serves = worker.profile ? ` · ${worker.model} · profile ${worker.profile.slice(0, 8)}` : "";
  name.append(small(`${worker.role}${serves}`));
  const state = cell("");
  const badge = document.createElement("span");
  badge.className = `badge ${worker.state}`;
  badge.textContent = worker.state;
  state.append(badge);
  if (worker.silent_s > SILENT_S) {
    const silent = small(`silent for ${worker.silent_s.toFixed(0)} s`);
    silent.classList.add("silent");
    state.append(silent);
  }
  const jobs = cell(`${worker.held} of ${worker.slots}`);
  const meter = document.createElement("meter");
  meter.max = Math.max(worker.slots, 1);
  meter.value = worker.held;
  meter.setAttribute("aria-label", `${worker.held} of ${worker.slots} slots in use`);
  jobs.append(meter);
  const main = MAIN[worker.role];
  const speed = cell(pace ? `${(pace[main] ?? 0).toFixed(1)} ${main}` : "–");
  if (pace?.busy_ms !== undefined) speed.append(small(`busy ${Math.min(100, pace.busy_ms / 10).toFixed(0)}%`));
  const done = Object.entries(worker.done).filter(([what, number]) => number && what !== "busy_ms");
  const last = cell(done.map(([what, number]) => `${number.toLocaleString("en")} ${what}`).join(", ") || "nothing yet");
  last.className = "done";
  return row(
    name, state, jobs,
    cell(worker.held ? `${worker.oldest_s.toFixed(0)} s` : "–"),
    speed,
    last,
  );
}

function figure(name, number) {
  const made = document.createElement("div");
  const term = document.createElement("dt");
  const value = document.createElement("dd");
  term.textContent = name;
  value.textContent = number.toLocaleString("en");
  made.append(term, value);
  return made;
}

function row(...cells) {
  const made = document.createElement("tr");
  made.append(...cells);
  return made;
}

function cell(text) {
  const made = document.createElement("td");
  if (typeof text === "number") made.className = "number";
  made.textContent = text;
  return made;
}

function small(text) {
  const made = document.createElement("span");
  made.className = "which";
  made.textContent = text;
  return made;
}

function sum(things, number) {
  return things.reduce((total, thing) => total + number(thing), 0);
}

tellAway(server);
document.addEventListener("visibilitychange", () => document.hidden || refresh());
server
  .call("/v1/models")
  .then(({ data }) => data.forEach((model) => rates.set(model.id, model.sample_rate)))
  .catch(() => {})
  .finally(refresh);
