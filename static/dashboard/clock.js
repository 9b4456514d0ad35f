/* One clock for every live part: fires sy:tick5, sy:tick15 and sy:tick60 on the body while somebody is looking. */
(function () {
  "use strict";
  const PERIODS_S = [5, 15, 60];
  const LONGEST_S = 60;
  const ASLEEP_AFTER_MS = 30 * 60 * 1000;
  let failures = 0;
  let lastInput = Date.now();
  let asleep = false;
  const due = new Map(PERIODS_S.map((period) => [period, nextTime(period)]));

  function nextTime(period) {
    const slowed = Math.min(LONGEST_S, period * 2 ** Math.min(failures, 4));
    // Jitter, so that two hundred open tabs do not ask in step.
    return Date.now() + slowed * 1000 * (0.8 + 0.4 * Math.random());
  }
  function fire(period) {
    due.set(period, nextTime(period));
    document.body.dispatchEvent(new CustomEvent("sy:tick" + period));
  }
  function banner(html) {
    const bar = document.getElementById("offline");
    if (!bar) return;
    bar.hidden = html === "";
    bar.querySelector("[data-text]").textContent = html;
    bar.querySelector("[data-resume]").hidden = !asleep;
  }

  setInterval(() => {
    if (document.hidden || asleep) return;
    if (Date.now() - lastInput > ASLEEP_AFTER_MS) {
      asleep = true;
      banner("Live updates stopped after 30 minutes without input.");
      return;
    }
    for (const [period, at] of due) if (Date.now() >= at) fire(period);
  }, 500);

  function wake() {
    lastInput = Date.now();
    if (!asleep) return;
    asleep = false;
    banner("");
    PERIODS_S.forEach(fire);
  }
  for (const kind of ["pointerdown", "keydown", "wheel", "touchstart"]) {
    document.addEventListener(kind, () => { lastInput = Date.now(); }, { passive: true });
  }
  document.addEventListener("click", (event) => {
    if (event.target.closest("[data-resume]")) wake();
  });
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden && !asleep) PERIODS_S.forEach(fire);
  });

  function failed(text) {
    failures += 1;
    document.documentElement.classList.add("is-offline");
    banner(text);
  }
  function worked() {
    if (failures === 0) return;
    failures = 0;
    document.documentElement.classList.remove("is-offline");
    banner("");
  }
  /* What a form asks for says itself that it failed. */
  const isOfForm = (event) => Boolean(event.detail.elt && event.detail.elt.closest("form, dialog"));
  document.addEventListener("htmx:sendError", (event) => isOfForm(event) || failed("Not connected, trying again. The numbers are those of the last contact."));
  document.addEventListener("htmx:responseError", (event) => {
    if (isOfForm(event)) return;
    const status = event.detail.xhr.status;
    if (status === 401 || status === 403) return failed("You are signed out here. Reload the page to sign in again.");
    failed("This page could not be refreshed, trying again.");
  });
  document.addEventListener("htmx:afterRequest", (event) => { if (event.detail.successful) worked(); });
  document.addEventListener("sy:chart-failed", () => failed("Not connected, trying again. The numbers are those of the last contact."));

  /* Signed out meanwhile: the answer is the sign-in page. It must not be put into a part of this one. */
  document.addEventListener("htmx:beforeSwap", (event) => {
    const url = event.detail.xhr.responseURL || "";
    if (url.includes("/accounts/login/")) {
      event.detail.shouldSwap = false;
      failed("You are signed out here. Reload the page to sign in again.");
    }
  });

  /* What a person has open or scrolled stays so, and new rows are marked for a moment. */
  const known = new WeakMap();
  document.addEventListener("htmx:beforeSwap", (event) => {
    const target = event.detail.target;
    known.set(target, {
      rows: new Set([...target.querySelectorAll("tr[id], li[id]")].map((row) => row.id)),
      ends: [...target.querySelectorAll("[data-follow]")].map((el) => [el.id, el.scrollTop, el.scrollTop + el.clientHeight >= el.scrollHeight - 8]),
    });
  });
  document.addEventListener("htmx:afterSwap", (event) => {
    const before = known.get(event.detail.target);
    if (!before) return;
    if (before.rows.size) {
      for (const row of event.detail.target.querySelectorAll("tr[id], li[id]")) {
        if (!before.rows.has(row.id)) row.classList.add("is-new");
      }
    }
    for (const [id, top, atEnd] of before.ends) {
      const el = document.getElementById(id);
      if (el) el.scrollTop = atEnd ? el.scrollHeight : top;
    }
  });
  for (const el of document.querySelectorAll("[data-follow]")) el.scrollTop = el.scrollHeight;

  /* Messages: a result stays eight seconds, a trouble until it is closed. */
  for (const toast of document.querySelectorAll(".toast")) {
    if (!toast.classList.contains("error")) setTimeout(() => { toast.hidden = true; }, 8000);
  }
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-close-toast]");
    if (button) button.closest(".toast").hidden = true;
  });
})();
