/* The keyboard: / searches, g and a letter goes to a page, j and k walk the rows, ? lists the keys. None of them changes anything. */
(function () {
  "use strict";
  const PLACES = { o: "/", q: "/queue/", n: "/nodes/", r: "/reservations/", t: "/quotas/", u: "/utilization/", p: "/power/", s: "/passes/", a: "/audit/", m: "/me/" };
  const isOff = document.body.dataset.keys === "off";
  let awaitingPlace = false;

  const isTyping = () => /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName) || document.activeElement.isContentEditable;
  function rows() { return [...document.querySelectorAll("[data-rows] > tr")]; }
  function current() { return document.querySelector("[data-rows] > tr.is-current"); }
  function step(by) {
    const all = rows();
    if (!all.length) return;
    const from = all.indexOf(current());
    const to = all[Math.max(0, Math.min(all.length - 1, from + by))];
    all.forEach((row) => row.classList.toggle("is-current", row === to));
    to.scrollIntoView({ block: "nearest" });
    const link = to.querySelector("a.name");
    if (link) link.focus({ preventScroll: true });
  }

  document.addEventListener("keydown", (event) => {
    if (isOff || event.ctrlKey || event.metaKey || event.altKey || isTyping()) return;
    if (awaitingPlace) {
      awaitingPlace = false;
      if (PLACES[event.key]) { event.preventDefault(); location.assign(PLACES[event.key]); }
      return;
    }
    switch (event.key) {
      case "/": {
        const search = document.querySelector(".top .search input");
        if (search && search.offsetParent) { event.preventDefault(); search.focus(); }
        break;
      }
      case "g": awaitingPlace = true; setTimeout(() => { awaitingPlace = false; }, 1500); break;
      case "j": step(1); break;
      case "k": step(-1); break;
      case "t": document.dispatchEvent(new CustomEvent("sy:toggle-theme")); break;
      case "?": { const help = document.getElementById("keys-help"); if (help && help.togglePopover) help.togglePopover(); break; }
    }
  });

  /* A form that was changed says so, and leaving asks first. */
  for (const form of document.querySelectorAll("form[data-guard]")) {
    let isSending = false;
    const inputs = [...form.elements].filter((el) => el.name && el.type !== "hidden");
    const isChanged = (el) => el.type === "checkbox" ? el.checked !== el.defaultChecked : el.value !== el.defaultValue;
    const count = () => inputs.filter((el) => el.matches("[data-counted]") && isChanged(el)).length;
    const label = form.querySelector("[data-unsaved]");
    form.addEventListener("input", (event) => {
      event.target.classList.toggle("changed", isChanged(event.target));
      const n = count();
      if (label) { label.textContent = n === 1 ? "1 unsaved change" : n + " unsaved changes"; label.classList.toggle("warn", n > 0); }
    });
    form.addEventListener("reset", () => setTimeout(() => {
      inputs.forEach((el) => el.classList.remove("changed"));
      if (label) { label.textContent = "0 unsaved changes"; label.classList.remove("warn"); }
    }));
    form.addEventListener("submit", () => { isSending = true; });
    addEventListener("beforeunload", (event) => { if (!isSending && count() > 0) event.preventDefault(); });
  }

  /* Filters apply as soon as a choice is made; without script there is a button for it. */
  document.addEventListener("change", (event) => {
    const form = event.target.closest("form[data-auto]");
    if (form && event.target.matches("select, input[type=checkbox]")) form.requestSubmit();
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const source = document.getElementById(button.dataset.copy);
    if (source && navigator.clipboard) navigator.clipboard.writeText(source.textContent).then(() => { button.querySelector("[data-label]").textContent = "Copied"; });
  });
})();
