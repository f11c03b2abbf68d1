// What a job's log says about its pace. Times in seconds from the request.

const ROLES = { talker: "talker", acoustic: "acoustic stage" };

/** {firstAudio, soundSoFar, realTimeFactor}: null where nothing is known yet. */
export function figures(log, rate) {
  const chunks = log.filter((event) => event.type === "audio.chunk");
  if (!chunks.length || !rate) return { firstAudio: null, soundSoFar: null, realTimeFactor: null };
  const began = log[0].at;
  const last = chunks.at(-1);
  const soundSoFar = (last.data.start_sample + last.data.samples) / rate;
  return { firstAudio: chunks[0].at - began, soundSoFar, realTimeFactor: (last.at - began) / soundSoFar };
}

/**
 * The log as lanes of {from, to, label}: when each span was drawn, each window decoded, and when a listener who began
 * at once hears it.
 */
export function lanes(log, rate) {
  const drawn = [];
  const decoded = [];
  const heard = [];
  const spans = new Map();
  let talkerFree = 0;
  let acousticFree = 0;
  for (const event of log) {
    const at = event.at - log[0].at;
    if (event.type === "job.admitted" || event.type === "job.resumed") {
      if (event.data.role === "talker") talkerFree = at;
      else acousticFree = at;
    } else if (event.type.startsWith("span.")) {
      const { index, frames } = event.data;
      drawn.push({ from: talkerFree, to: at, label: `span ${index}: ${frames} frames` });
      spans.set(index, at);
      talkerFree = at;
    } else if (event.type === "audio.chunk") {
      const { index, samples } = event.data;
      decoded.push({ from: Math.max(acousticFree, spans.get(index) ?? 0), to: at, label: `window ${index}` });
      acousticFree = at;
      const from = Math.max(at, heard.at(-1)?.to ?? 0);
      heard.push({ from, to: from + samples / rate, label: `sound of window ${index}` });
    }
  }
  return { drawn, decoded, heard };
}

/** Events that are a moment, not a piece of work: {at, type, label}. */
export function moments(log) {
  return log
    .filter(({ type }) => !type.startsWith("span.") && !["audio.chunk", "codes.logged", "rows.freed"].includes(type))
    .map((event) => ({ at: event.at - log[0].at, type: event.type, label: told(event) }));
}

/** One event in words. */
export function told({ type, data }) {
  switch (type) {
    case "job.requested":
      return `${data.model}, seed ${data.seed}`;
    case "job.admitted":
      return `taken by the ${ROLES[data.role]}`;
    case "job.resumed":
      return `taken over by the ${ROLES[data.role]}, attempt ${data.attempt}`;
    case "reference.encoded":
      return "the recording is read";
    case "codes.logged":
      return `codes from draw ${data.start_draw}`;
    case "span.window":
    case "span.terminal":
      return `span ${data.index}: frames ${data.start_frame} to ${data.start_frame + data.frames}`;
    case "audio.chunk":
      return `window ${data.index}: ${data.samples.toLocaleString("en")} samples`;
    case "rows.freed":
      return `rows freed: ${data.why}`;
    case "job.cancelled":
      return `cancelled by ${data.by_whom}`;
    case "job.failed":
      return data.message;
    case "job.completed":
      return `${data.frames} frames, ended by ${data.reason}`;
  }
  return "";
}
