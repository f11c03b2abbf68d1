// The API key's dialog.

const dialog = document.createElement("dialog");
dialog.id = "key-dialog";
dialog.setAttribute("aria-labelledby", "key-title");
dialog.innerHTML = `
  <form method="dialog" id="key-form">
    <h2 id="key-title">This server wants an API key</h2>
    <p class="field">
      <label for="key">API key</label>
      <input id="key" type="password" autocomplete="off" required aria-describedby="key-error">
      <span class="error" id="key-error" role="alert"></span>
    </p>
    <p class="hint">It is kept for this tab only, until you close it.</p>
    <p class="actions">
      <button class="main" type="submit" value="use">Use it</button>
      <button type="button" id="key-dismiss">Not now</button>
    </p>
  </form>
`;
document.body.append(dialog);
const form = document.getElementById("key-form");
const input = document.getElementById("key");
const error = document.getElementById("key-error");

document.getElementById("key-dismiss").addEventListener("click", () => dialog.close(""));
form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (input.value.trim()) dialog.close(input.value.trim());
});

/** The key that a person gives, or null. `why` the last one was refused, if there was one. */
export function askKey(why) {
  error.textContent = why;
  input.value = "";
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue || null), { once: true });
  });
}
