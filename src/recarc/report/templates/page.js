"use strict";
(() => {
  const all = (selector, root = document) => Array.from(root.querySelectorAll(selector));
  const percent = (fraction, digits = 2) => (100 * fraction).toFixed(digits);

  // Plots: names toggle their series, hovering shows the values at the nearest point.
  for (const figure of all("figure.interactive")) {
    const groups = all("svg.plot .series", figure);
    const named = (name) => groups.filter((group) => group.dataset.series === name);
    for (const button of all(".legend button", figure)) {
      button.addEventListener("click", () => {
        const on = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", String(on));
        named(button.dataset.series).forEach((group) => group.classList.toggle("off", !on));
      });
      const dim = (name) => groups.forEach((group) => group.classList.toggle("dim", name !== null && group.dataset.series !== name));
      button.addEventListener("pointerenter", () => dim(button.getAttribute("aria-pressed") === "true" ? button.dataset.series : null));
      button.addEventListener("pointerleave", () => dim(null));
    }
    const tip = figure.querySelector(".tip"), svg = figure.querySelector("svg.plot"), guide = figure.querySelector(".guide");
    if (!tip) continue;
    const width = svg.viewBox.baseVal.width;
    const hide = () => { tip.hidden = true; guide.setAttribute("hidden", ""); };
    const show = (event) => {
      const frame = svg.getBoundingClientRect();
      const at = (event.clientX - frame.left) / frame.width * width;
      const marks = all(".series:not(.off) .mark", svg);
      if (!marks.length) return hide();
      const away = (mark) => Math.abs(Number(mark.dataset.at) - at);
      const nearest = marks.reduce((best, mark) => (away(mark) < away(best) ? mark : best));
      const here = marks.filter((mark) => mark.dataset.x === nearest.dataset.x);
      tip.replaceChildren();
      const head = document.createElement("b");
      head.textContent = nearest.dataset.text;
      tip.append(head);
      for (const mark of here.sort((a, b) => Number(b.dataset.value) - Number(a.dataset.value))) {
        const group = mark.closest(".series"), line = document.createElement("span"), key = document.createElement("i");
        line.className = group.getAttribute("class").replace("series", "");
        line.append(key, `${group.dataset.series} ${percent(mark.dataset.value, 1)} % [${percent(mark.dataset.low, 0)}, ${percent(mark.dataset.high, 0)}]`);
        tip.append(line);
      }
      tip.hidden = false;
      guide.removeAttribute("hidden");
      ["x1", "x2"].forEach((name) => guide.setAttribute(name, nearest.dataset.at));
      const x = Number(nearest.dataset.at) / width * frame.width;
      const left = x > frame.width / 2 ? x - tip.offsetWidth - 12 : x + 12;
      tip.style.left = `${Math.max(0, Math.min(frame.width - tip.offsetWidth, left))}px`;
    };
    svg.addEventListener("pointermove", show);
    svg.addEventListener("pointerdown", show);
    svg.addEventListener("pointerleave", hide);
  }

  // Another alpha: the saved patterns scored again, as Evaluation.robust_at does.
  const source = document.getElementById("rescoring-data");
  if (!source) return;
  const bounds = JSON.parse(source.textContent), members = bounds.alpha.length;
  const scored = (line, alpha) => alpha.reduce((sum, a, i) => sum + a * line.right[i], 0);
  const worst = (alpha) => {
    const lowest = (masks) => Math.min(...masks.map((mask) => alpha.reduce((sum, a, i) => sum + ((mask >> i) & 1 ? a : 0), 0)));
    return bounds.groups.reduce((sum, [count, masks]) => sum + count * lowest(masks), 0) / bounds.samples;
  };
  const form = document.getElementById("alphas"), sliders = all("input", form), cursor = document.getElementById("alpha-cursor");
  const probabilities = () => {
    const values = sliders.map((slider) => Number(slider.value));
    if (members === 2) return [values[0], 1 - values[0]];
    const total = values.reduce((a, b) => a + b, 0);
    return total > 0 ? values.map((value) => value / total) : values.map(() => 1 / members);
  };
  const update = (alpha) => {
    alpha.forEach((a, i) => { document.getElementById(`alpha-text-${i}`).textContent = a.toFixed(2); });
    for (const row of all("#what-if [data-line]")) {
      const line = bounds.lines.find((candidate) => candidate.name === row.dataset.line);
      const value = line ? scored(line, alpha) : worst(alpha), cell = row.querySelector(".value");
      cell.textContent = percent(value);
      cell.dataset.value = value;
    }
    if (cursor) ["x1", "x2"].forEach((name) => cursor.setAttribute(name, Number(cursor.dataset.left) + alpha[0] * Number(cursor.dataset.span)));
  };
  form.addEventListener("input", () => update(probabilities()));
  form.addEventListener("reset", () => setTimeout(() => update(bounds.alpha)));
  form.addEventListener("submit", (event) => event.preventDefault());
  update(bounds.alpha);
})();
