// The list of jobs, newest first. It is read again while one of them is under way.

const AGAIN_MS = 5000;
const FINAL = ["completed", "failed", "cancelled"];
const list = document.getElementById("jobs");
const told = document.getElementById("jobs-told");
const more = document.getElementById("more");

export class JobList {
  #server;
  #jobs = [];
  #limit = 10;
  #open = "";
  #timer = 0;
  #turn = 0;

  constructor(server) {
    this.#server = server;
    more.addEventListener("click", () => {
      this.#limit = Math.min(100, this.#limit + 20);
      this.refresh();
    });
    document.addEventListener("visibilitychange", () => document.hidden || this.refresh());
  }

  /** The job that is open, to be marked. */
  set open(id) {
    this.#open = id;
    this.#show();
  }

  /** What is known of a job that may be listed. */
  note(view) {
    const place = this.#jobs.findIndex(({ id }) => id === view.id);
    if (place < 0 || this.#jobs[place].status === view.status) return;
    this.#jobs[place] = view;
    this.#show();
  }

  async refresh() {
    clearTimeout(this.#timer);
    const turn = ++this.#turn;
    try {
      const page = await this.#server.call(`/v1/jobs?limit=${this.#limit}`);
      if (turn !== this.#turn) return;
      this.#jobs = page.data;
      more.hidden = !page.has_more || this.#limit === 100;
      told.textContent = page.data.length ? "" : "Yours are listed here, newest first.";
      this.#show();
    } catch (error) {
      told.textContent = error.message;
      return;
    }
    if (!document.hidden && this.#jobs.some(({ status }) => status && !FINAL.includes(status))) {
      this.#timer = setTimeout(() => this.refresh(), AGAIN_MS);
    }
  }

  #show() {
    const focused = list.contains(document.activeElement) ? document.activeElement.hash : null;
    list.replaceChildren(...this.#jobs.map((job) => this.#item(job)));
    if (focused) [...list.querySelectorAll("a")].find(({ hash }) => hash === focused)?.focus();
  }

  #item(job) {
    const status = job.status ?? "unreadable";
    const item = document.createElement("li");
    const link = document.createElement("a");
    link.href = `#job=${job.id}`;
    if (job.id === this.#open) link.setAttribute("aria-current", "true");
    link.append(
      span("what", job.input?.trim().split("\n").join(" ").slice(0, 120) || job.id),
      span(`badge ${status}`, status),
      span("which", [job.model, length(job.audio_seconds)].filter(Boolean).join(" · ")),
    );
    item.append(link);
    return item;
  }
}

function length(seconds) {
  return seconds ? `${seconds.toFixed(1)} s` : "";
}

function span(className, text) {
  const made = document.createElement("span");
  made.className = className;
  made.textContent = text;
  return made;
}
