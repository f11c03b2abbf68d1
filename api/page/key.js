// The API key's dialog.

const dialog = document.getElementById("key-dialog");
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
