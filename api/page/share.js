// The link of the job that is open, for others.

const told = document.getElementById("copied");
const SILENCE_MS = 100; // between two notices that are alike, or a screen reader tells of the first alone
const COPIED = "The link is copied: whoever opens it hears the job from its beginning.";

/** Copy the page's address, and say so. */
export async function copyLink() {
  told.textContent = "";
  const copied = await copy(location.href);
  await new Promise((resolve) => setTimeout(resolve, SILENCE_MS));
  told.textContent = copied ? COPIED : "The browser does not let this page copy: take the link from its address bar.";
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copySelected(text); // the clipboard is only lent to pages that came over https or from this machine
  }
}

function copySelected(text) {
  const focused = document.activeElement;
  const field = Object.assign(document.createElement("textarea"), { value: text, className: "unseen" });
  document.body.append(field);
  field.select();
  const copied = document.execCommand("copy");
  field.remove();
  focused?.focus();
  return copied;
}
