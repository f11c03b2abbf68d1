// Server-sent events, read from a fetch's body: an EventSource could not send an API key.

const SILENCE_MS = 45_000; // three of the server's signs of life

/**
 * The messages of an event stream: {event, data, id}; comments are skipped, and so is a message cut short.
 * Throws where the connection breaks, or says nothing for too long.
 */
export async function* messages(body) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let text = "";
  let searched = 0;
  try {
    for (;;) {
      const { value, done } = await soon(reader.read());
      if (done) return;
      text += decoder.decode(value, { stream: true });
      let end;
      while ((end = text.indexOf("\n\n", searched)) >= 0) {
        const message = parsed(text.slice(0, end));
        text = text.slice(end + 2);
        searched = 0;
        if (message) yield message;
      }
      searched = Math.max(0, text.length - 1);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function parsed(block) {
  const message = { event: "message", data: [], id: null };
  for (const line of block.split("\n")) {
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "data") message.data.push(value);
    else if (field === "event" || field === "id") message[field] = value;
  }
  return message.data.length ? { ...message, data: message.data.join("\n") } : null;
}

function soon(reading) {
  let timer;
  const silence = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error("the stream fell silent")), SILENCE_MS);
  });
  return Promise.race([reading, silence]).finally(() => clearTimeout(timer));
}
