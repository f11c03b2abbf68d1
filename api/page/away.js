// The notice that the server is away.

const away = document.getElementById("away");

/** Shown while the server does not answer. */
export function tellAway(server) {
  server.addEventListener("away", () => {
    if (away.childElementCount) return;
    const now = document.createElement("button");
    now.type = "button";
    now.textContent = "Try now";
    now.addEventListener("click", () => server.tryNow());
    away.replaceChildren("The server is away. It is asked again and again, and nothing is lost. ", now);
  });
  server.addEventListener("back", () => away.replaceChildren());
}
