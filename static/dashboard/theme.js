/* Runs in the head, before the first paint: the colour theme a person chose. Without a choice the system decides. */
(function () {
  "use strict";
  const root = document.documentElement;
  const stored = () => {
    try { return localStorage.getItem("sy-theme"); } catch { return null; } // storage may be forbidden
  };
  const isDark = () => root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;

  const chosen = stored();
  if (chosen === "dark" || chosen === "light") root.dataset.theme = chosen;

  function toggle() {
    root.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem("sy-theme", root.dataset.theme); } catch { /* lasts for this page then */ }
    document.dispatchEvent(new CustomEvent("sy:theme"));
  }
  document.addEventListener("sy:toggle-theme", toggle);
  document.addEventListener("click", (event) => {
    if (event.target.closest("[data-theme-toggle]")) toggle();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    document.dispatchEvent(new CustomEvent("sy:theme"));
  });
})();
