// What is wrong with a form, each error beside its field.

/** `rest` takes the errors that are about no field. An error goes away once its field is changed. */
export class FormErrors {
  #form;
  #rest;

  constructor(form, rest) {
    this.#form = form;
    this.#rest = rest;
    for (const control of this.#controls) {
      if (!control.hasAttribute("aria-describedby")) control.setAttribute("aria-describedby", told(control).id);
    }
    form.addEventListener("input", ({ target }) => target.name && clear(target));
  }

  /** Shows it alone, and goes to its field. */
  show({ param, message }) {
    this.clear();
    const control = this.#controls.find(({ name }) => name === param);
    if (!control || control.closest(".field").hidden) {
      this.#rest.textContent = message;
      return;
    }
    if (control.closest("details")) control.closest("details").open = true;
    told(control).textContent = message;
    control.setAttribute("aria-invalid", "true");
    control.focus();
  }

  clear() {
    this.#rest.textContent = "";
    for (const control of this.#controls) clear(control);
  }

  get #controls() {
    return [...this.#form.elements].filter(({ name }) => name);
  }
}

function told(control) {
  return document.getElementById(`${control.id}-error`);
}

function clear(control) {
  told(control).textContent = "";
  control.removeAttribute("aria-invalid");
}
