// The page: the form makes a job, the panel plays the one that the address names, the list has all of them.

import { tellAway } from "./away.js";
import { JobList } from "./jobs.js";
import { askKey } from "./key.js";
import { Listener } from "./listener.js";
import { body, chooseVoice, chosenModel, errors, offer, offerVoices, onOrder } from "./order.js";
import { contextOf } from "./playback.js";
import { Server } from "./server.js";
import { copyLink } from "./share.js";
import { VoicesDialog } from "./voices.js";

const server = new Server(askKey);
export const listener = new Listener(server);
const jobs = new JobList(server);
const voices = new VoicesDialog(server);
const make = document.getElementById("make");

async function start() {
  openNamed();
  try {
    const [models, voices] = await Promise.all([server.call("/v1/models"), server.call("/v1/audio/voices")]);
    offer(models.data, voices.data);
  } catch (error) {
    errors.show(error);
  }
  await jobs.refresh();
}

async function order() {
  if (make.getAttribute("aria-busy") === "true") return;
  errors.clear();
  make.setAttribute("aria-busy", "true");
  const chosen = chosenModel();
  if (chosen) contextOf(chosen.sample_rate).resume(); // while the key or button is pressed: see contextOf
  try {
    if (!chosen) await start();
    // With a key of its own, a request that is sent again makes no second job.
    const headers = { "Content-Type": "application/json", "Idempotency-Key": newKey() };
    const job = await server.call("/v1/jobs", { method: "POST", headers, body: body() });
    history.pushState(null, "", `#job=${job.id}`);
    openNamed(true);
    bringIntoView(document.getElementById("listen"));
    jobs.refresh();
  } catch (error) {
    errors.show(error);
  } finally {
    make.removeAttribute("aria-busy");
  }
}

/** Open the job that the address names, if it names one. */
function openNamed(play = false) {
  const id = new URLSearchParams(location.hash.slice(1)).get("job");
  jobs.open = id ?? "";
  if (!id) listener.close();
  else if (id !== listener.job?.id) listener.open(id, play);
}

/** On a narrow screen what plays is below the form. */
function bringIntoView(panel) {
  if (panel.getBoundingClientRect().top < innerHeight / 2) return;
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  panel.scrollIntoView({ behavior: calm ? "auto" : "smooth" });
}

/** Random; crypto.randomUUID is only there on pages that came over https or from this machine. */
function newKey() {
  return Array.from(crypto.getRandomValues(new Uint32Array(4)), (n) => n.toString(16)).join("-");
}

tellAway(server);
listener.addEventListener("seen", ({ detail: view }) => jobs.note(view));
listener.addEventListener("ended", () => jobs.refresh());
window.addEventListener("hashchange", () => {
  openNamed();
  document.getElementById("listen-title").focus();
});
document.getElementById("copy-link").addEventListener("click", copyLink);
document.getElementById("own-voices").addEventListener("click", () => voices.open());
voices.addEventListener("listed", ({ detail: all }) => offerVoices(all));
voices.addEventListener("chosen", ({ detail: name }) => chooseVoice(name, `${name} speaks next.`));
voices.addEventListener("kept", ({ detail: name }) => chooseVoice(name, `${name} is kept, and speaks next.`));
onOrder(order);
start();
