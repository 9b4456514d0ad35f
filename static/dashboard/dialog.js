/* A link with data-dialog opens its page over this one. Without script, and for a new tab, it is a link like any other. */
(function () {
  "use strict";
  const find = () => document.getElementById("dialog");

  function made() {
    const dialog = document.createElement("dialog");
    dialog.id = "dialog";
    dialog.className = "sheet wide";
    dialog.setAttribute("aria-labelledby", "dialog-title");
    // Taken away when it is closed: a page has each field once, and what was typed is not there the next time.
    dialog.addEventListener("close", () => dialog.remove());
    document.body.append(dialog);
    return dialog;
  }
  function show(url) {
    const dialog = find() || made();
    dialog.textContent = "";
    const title = document.createElement("h2");
    title.id = "dialog-title";
    title.textContent = "Loading…";
    dialog.append(title);
    if (!dialog.open) dialog.showModal();
    const leave = () => { dialog.close(); location.assign(url); };  // the page itself says what is wrong
    htmx.ajax("GET", url, { target: dialog, swap: "innerHTML" }).then(() => {
      const first = dialog.querySelector("form input:not([type=hidden]):not([type=radio]), form select");
      if (first) first.focus(); else leave();
    }, leave);
  }

  document.addEventListener("click", (event) => {
    if (event.target.closest("[data-close-dialog]")) find().close();
    const link = event.target.closest("a[data-dialog]");
    if (!link || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    if (!window.htmx || !window.HTMLDialogElement) return;
    if (document.querySelector("main .plan-form")) return;  // the form is there already, and stands in a page once
    event.preventDefault();
    show(link.href);
  });

  /* A preview that could not be worked out says so, and nothing can be committed until the next one is there. */
  const isPreview = (event) => event.detail.target && event.detail.target.id === "preview";
  function mark(isFailed) {
    const note = document.getElementById("preview-failed");
    if (note) note.hidden = !isFailed;
    for (const button of document.querySelectorAll("#commit-bar button[value=commit]")) button.disabled = isFailed;
  }
  for (const kind of ["htmx:responseError", "htmx:sendError", "htmx:timeout"]) {
    document.addEventListener(kind, (event) => { if (isPreview(event)) mark(true); });
  }
  document.addEventListener("htmx:afterSwap", (event) => { if (isPreview(event)) mark(false); });
  document.addEventListener("click", (event) => {
    if (event.target.closest("[data-retry]")) htmx.trigger("#wish", "input");
  });
})();
