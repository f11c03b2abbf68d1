// The sound so far on a canvas: its peaks, where windows meet, and what has been heard.

const BINS_A_SECOND = 100;
const LEAST_S = 2; // the canvas' width at least, while the job is under way

export class Waveform {
  #canvas;
  #peaks = []; // the largest magnitude of each bin, 0 to 1
  #borders = []; // seconds at which a window ends
  #samples = 0;
  #rate = 1;
  #heard = 0;
  #ended = false;

  constructor(canvas) {
    this.#canvas = canvas;
    new ResizeObserver(() => this.draw()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  clear(rate) {
    this.#peaks = [];
    this.#borders = [];
    this.#samples = 0;
    this.#rate = rate;
    this.#heard = 0;
    this.#ended = false;
    this.draw();
  }

  /** The next chunk: interleaved Int16Array. */
  add(pcm, channels) {
    const perBin = this.#rate / BINS_A_SECOND;
    for (let i = 0, sample = this.#samples; i < pcm.length; sample++) {
      let peak = 0;
      for (let channel = 0; channel < channels; channel++) peak = Math.max(peak, Math.abs(pcm[i++]));
      const bin = Math.floor(sample / perBin);
      this.#peaks[bin] = Math.max(this.#peaks[bin] ?? 0, peak / 32768);
    }
    this.#samples += pcm.length / channels;
    this.#borders.push(this.#samples / this.#rate);
    this.draw();
  }

  end() {
    this.#ended = true;
    this.draw();
  }

  /** What has been heard, in samples. */
  set heard(samples) {
    const before = this.#heardAt;
    this.#heard = samples;
    if (this.#heardAt !== before) this.draw();
  }

  /** The pixel up to which it has been heard. */
  get #heardAt() {
    return Math.round((this.#heard / this.#rate / this.span) * this.#canvas.clientWidth);
  }

  /** Seconds that the canvas is wide. */
  get span() {
    const seconds = this.#samples / this.#rate;
    return this.#ended ? seconds : Math.max(seconds, LEAST_S);
  }

  draw() {
    const { clientWidth: width, clientHeight: height } = this.#canvas;
    if (!width) return;
    const scale = devicePixelRatio || 1;
    this.#canvas.width = width * scale;
    this.#canvas.height = height * scale;
    const ink = this.#canvas.getContext("2d");
    ink.scale(scale, scale);
    const style = getComputedStyle(this.#canvas);
    const colour = (name) => style.getPropertyValue(name);
    const [heard, coming, line, place] = [colour("--accent"), colour("--wave"), colour("--line"), colour("--ink")];
    const perPixel = (this.span * BINS_A_SECOND) / width;
    const heardAt = this.#heardAt;
    for (const border of this.#ended ? this.#borders.slice(0, -1) : this.#borders) {
      ink.fillStyle = line;
      ink.fillRect(Math.round((border / this.span) * width), 0, 1, height);
    }
    for (let x = 0; x < width; x += 3) {
      const from = Math.floor(x * perPixel);
      if (from >= this.#peaks.length) break;
      const peak = Math.max(...this.#peaks.slice(from, Math.max(from + 1, Math.floor((x + 3) * perPixel))));
      const tall = Math.max(2, peak * (height - 8));
      ink.fillStyle = x < heardAt ? heard : coming;
      ink.fillRect(x, (height - tall) / 2, 2, tall);
    }
    if (this.#heard) {
      ink.fillStyle = place;
      ink.fillRect(Math.min(width - 2, heardAt), 0, 2, height);
    }
  }
}
