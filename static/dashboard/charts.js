/* Draws every .chart from a JSON block made on the server. Colours come as CSS variables and are resolved here. */
(function () {
  "use strict";
  const CONFIG = { displayModeBar: false, responsive: true };
  const probe = document.createElement("span");
  probe.hidden = true;
  document.body.append(probe);

  function colour(name) {
    probe.style.color = "";
    probe.style.color = "var(" + name + ")";
    return getComputedStyle(probe).color;
  }
  function resolve(value) {
    if (typeof value === "string") return value.replace(/var\((--[\w-]+)\)/g, (_, name) => colour(name));
    if (Array.isArray(value)) return value.map(resolve);
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, resolve(inner)]));
    }
    return value;
  }
  const isPlain = (value) => value && typeof value === "object" && !Array.isArray(value);
  function merge(under, over) {
    const out = { ...under };
    for (const [key, value] of Object.entries(over)) out[key] = isPlain(value) && isPlain(under[key]) ? merge(under[key], value) : value;
    return out;
  }
  function baseLayout(axes) {
    const muted = colour("--sy-muted");
    const axis = {
      gridcolor: colour("--sy-grid"), linecolor: colour("--sy-border-strong"), tickcolor: colour("--sy-border-strong"),
      zeroline: false, tickfont: { color: muted, size: 11.5 }, automargin: true, title: { font: { color: muted, size: 12 } },
    };
    const layout = {
      font: { family: "Inter Variable, system-ui, sans-serif", size: 12, color: colour("--sy-text") },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 44, r: 14, t: 8, b: 28 },
      hovermode: "x unified", dragmode: false, separators: ".\u202f", showlegend: true,
      hoverlabel: { bgcolor: colour("--sy-surface"), bordercolor: colour("--sy-border-strong"), font: { color: colour("--sy-text"), size: 12 } },
      legend: { orientation: "h", traceorder: "normal", x: 0, y: 1.02, yanchor: "bottom", font: { size: 12, color: muted }, bgcolor: "rgba(0,0,0,0)" },
    };
    for (const name of axes) layout[name] = axis;
    return layout;
  }

  const figures = new WeakMap();
  const drawn = new WeakMap(); // by box: the promise of its last drawing
  function draw(el) {
    const figure = figures.get(el);
    if (!figure || !window.Plotly) return;
    const given = resolve(figure.layout || {});
    const axes = new Set(["xaxis", "yaxis", ...Object.keys(given).filter((key) => /^[xy]axis\d+$/.test(key))]);
    let layout = merge(baseLayout(axes), given);
    if (innerWidth < 768 && layout.meta && layout.meta.small) layout = merge(layout, layout.meta.small);
    const box = el.querySelector(".plot");
    const placeholder = el.querySelector(".placeholder");
    if (placeholder) placeholder.remove();
    drawn.set(box, Plotly.react(box, resolve(figure.data), layout, CONFIG));
  }
  function read(el) {
    const source = document.getElementById(el.dataset.figure);
    if (!source) return;
    figures.set(el, JSON.parse(source.textContent));
    draw(el);
  }
  async function refresh(el) {
    try {
      const answer = await fetch(el.dataset.url, { headers: { Accept: "application/json" }, credentials: "same-origin" });
      if (!answer.ok || answer.redirected) return;
      figures.set(el, await answer.json());
      draw(el);
    } catch {
      document.dispatchEvent(new CustomEvent("sy:chart-failed"));
    }
  }

  const all = () => [...document.querySelectorAll(".chart[data-figure]")];
  const start = () => all().forEach(read);
  if (document.fonts && document.fonts.ready) document.fonts.ready.then(start); else start();
  /* A part that was put in anew brings its charts: each is drawn once in a fresh box, for the old drawing went with the
     old part. A drawing that is under way is let finish before its box is given up. */
  const renewed = new Set();
  function renew() {
    for (const el of renewed) {
      const old = el.querySelector(".plot"), fresh = document.createElement("div");
      fresh.className = old.className.replace("js-plotly-plot", "").trim();
      old.replaceWith(fresh);
      Promise.resolve(drawn.get(old)).catch(() => {}).then(() => { if (window.Plotly) Plotly.purge(old); });
      read(el);
    }
    renewed.clear();
  }
  document.addEventListener("htmx:afterSettle", (event) => {
    const found = event.detail.target.querySelectorAll(".chart[data-figure]");
    if (found.length && !renewed.size) setTimeout(renew, 0);
    found.forEach((el) => renewed.add(el));
  });
  document.addEventListener("sy:theme", () => all().forEach(draw));
  for (const period of ["5", "15", "60"]) {
    document.body.addEventListener("sy:tick" + period, () => {
      all().filter((el) => el.dataset.url && el.dataset.every === period).forEach(refresh);
    });
  }
})();
