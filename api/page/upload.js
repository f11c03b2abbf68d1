// fetch for a body that takes its time: it tells how much is sent, which fetch does not.

/** `onProgress(share)`, from 0 to 1. Resolves and rejects as fetch does. */
export function upload(path, { method, headers, body, signal, onProgress }) {
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    const request = new XMLHttpRequest();
    request.open(method, path);
    for (const [name, value] of Object.entries(headers)) request.setRequestHeader(name, value);
    request.upload.addEventListener("progress", ({ loaded, total }) => onProgress(loaded / total));
    request.addEventListener("load", () => resolve(answer(request)));
    request.addEventListener("error", () => reject(new TypeError("the server is away")));
    request.addEventListener("abort", () => reject(signal.reason));
    signal?.addEventListener("abort", () => request.abort());
    request.send(body);
  });
}

function answer(request) {
  const lines = request.getAllResponseHeaders().trim().split("\r\n");
  const headers = lines.filter(Boolean).map((line) => /^([^:]+):\s*(.*)$/.exec(line).slice(1));
  return new Response(request.responseText || null, {
    status: request.status,
    statusText: request.statusText,
    headers,
  });
}
