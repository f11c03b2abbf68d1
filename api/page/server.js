// Calls to the api that this page came from. One that is away is asked again until it answers.

import { upload } from "./upload.js";

const KEY = "songline.key";
const LONGEST_PAUSE_S = 10;
const PASSING = ["broker_unavailable", "api_stopping"]; // codes of what another try may cure

/** A refusal: the api's own message, the field that it is about, and what it is called. */
export class ApiError extends Error {
  constructor(status, { message, param = null, code = "" }, retryAfter = 0) {
    super(message);
    this.status = status;
    this.param = param;
    this.code = code;
    this.retryAfter = retryAfter;
  }

  get passing() {
    return PASSING.includes(this.code) || [502, 504].includes(this.status);
  }
}

/** Tells "away" and "back". `askKey(why)` gives a key, or null. */
export class Server extends EventTarget {
  #askKey;
  #asking = null;
  #away = false;
  #hurry = new EventTarget();

  constructor(askKey) {
    super();
    this.#askKey = askKey;
    window.addEventListener("online", () => this.tryNow());
  }

  /** The JSON answer. Throws ApiError, or AbortError where `signal` says so. */
  async call(path, options = {}) {
    return parsed(await (await this.fetch(path, options)).text());
  }

  /** An answer that is no error. `options` are those of fetch, or of upload where they have `onProgress`. */
  async fetch(path, options = {}) {
    const send = options.onProgress ? upload : fetch;
    for (let tries = 0; ; tries++) {
      const key = sessionStorage.getItem(KEY);
      const headers = { ...options.headers, ...(key && { Authorization: `Bearer ${key}` }) };
      let answer;
      try {
        answer = await send(path, { ...options, headers });
      } catch (error) {
        if (options.signal?.aborted) throw error;
        await this.pause(tries, options.signal);
        continue;
      }
      const error = answer.ok ? null : await refusal(answer);
      if (error?.passing) {
        await this.pause(tries, options.signal, error.retryAfter);
        continue;
      }
      this.#isBack();
      if (!error) return answer;
      if (error.status !== 401 || !(await this.#otherKey(key, error.message))) throw error;
    }
  }

  /** Wait before another try, the longer the more there were. Throws AbortError. */
  async pause(tries, signal, atLeast = 0) {
    const seconds = Math.max(atLeast, Math.min(2 ** tries, LONGEST_PAUSE_S));
    this.#away = true;
    this.dispatchEvent(new Event("away"));
    await new Promise((resolve, reject) => {
      const timer = setTimeout(done, seconds * 1000, resolve);
      const go = () => done(resolve);
      const leave = () => done(() => reject(signal.reason));
      this.#hurry.addEventListener("now", go);
      signal?.addEventListener("abort", leave);
      const hurry = this.#hurry;
      function done(settle) {
        clearTimeout(timer);
        hurry.removeEventListener("now", go);
        signal?.removeEventListener("abort", leave);
        settle();
      }
      if (signal?.aborted) leave();
    });
  }

  tryNow() {
    this.#hurry.dispatchEvent(new Event("now"));
  }

  #isBack() {
    if (!this.#away) return;
    this.#away = false;
    this.dispatchEvent(new Event("back"));
  }

  /** Whether there is a key now other than the one refused. Many calls at once ask for it once. */
  async #otherKey(refused, why) {
    if (sessionStorage.getItem(KEY) === refused) {
      this.#asking ??= this.#askKey(refused === null ? "" : why).finally(() => (this.#asking = null));
      const key = await this.#asking;
      if (key === null) return false;
      sessionStorage.setItem(KEY, key);
    }
    return true;
  }
}

async function refusal(answer) {
  const text = await answer.text().catch(() => "");
  const retryAfter = Number(answer.headers.get("Retry-After")) || 0;
  try {
    const { error } = JSON.parse(text);
    const when = answer.status === 429 && retryAfter ? ` Try again in ${retryAfter} s.` : "";
    return new ApiError(answer.status, { ...error, message: error.message + when }, retryAfter);
  } catch {
    return new ApiError(answer.status, { message: `The server answers ${answer.status} ${answer.statusText}.` });
  }
}

/** JSON whose seeds keep all of their digits: they may be beyond what a number holds. */
function parsed(text) {
  return JSON.parse(text, (name, value, at) => (name === "seed" && at?.source ? at.source : value));
}
