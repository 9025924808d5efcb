// The page: a figure per chart, its switches and legend, what the pointer shows, redrawing when the width changes.

const CHARTS = JSON.parse(document.getElementById("charts").textContent);
const REACH = 22; // pixels from a point within which it is meant
const synced = new Map(); // name of a group -> figures that share a cross hair

class Figure {
  constructor(root, chart) {
    Object.assign(this, { root, chart, current: 0, hidden: new Set(), drawn: null });
    this.plot = root.querySelector(".plot");
    this.svg = add(this.plot, "svg", { role: "img", "aria-label": `${chart.title}: ${chart.note}` });
    this.tip = Object.assign(document.createElement("div"), { className: "tip", hidden: true });
    this.plot.append(this.tip);
    this.views = root.querySelectorAll(".views button");
    this.views.forEach((button, k) => button.addEventListener("click", () => this.show(k)));
    if (chart.sync) synced.set(chart.sync, [...(synced.get(chart.sync) || []), this]);
    this.plot.addEventListener("pointermove", (event) => this.point(event));
    this.plot.addEventListener("pointerdown", (event) => this.point(event));
    this.plot.addEventListener("pointerleave", () => this.leave());
    this.legend();
    new ResizeObserver(() => this.fit()).observe(this.plot);
  }

  get view() { return this.chart.views[this.current]; }

  show(k) {
    this.current = k;
    this.views.forEach((button, n) => button.setAttribute("aria-pressed", String(n === k)));
    this.legend();
    this.draw();
  }

  fit() {
    const width = Math.floor(this.plot.clientWidth);
    if (width > 0 && width !== this.width) { this.width = width; this.draw(); }
  }

  draw() {
    this.svg.replaceChildren();
    this.tip.hidden = true;
    this.drawn = drawView(this.svg, this.view, this.hidden, this.width, this.chart.height);
    this.over = add(this.svg, "g");
  }

  legend() {
    const box = this.root.querySelector(".legend");
    const buttons = this.view.series.map((one) => {
      const button = document.createElement("button"), swatch = document.createElement("i");
      swatch.className = `${one.kind}${one.dashed ? " dashed" : ""}`;
      swatch.style.color = colour(one.colour);
      button.append(swatch, one.name);
      button.setAttribute("aria-pressed", String(!this.hidden.has(one.name)));
      button.title = "show or hide";
      button.addEventListener("click", () => {
        this.hidden.has(one.name) ? this.hidden.delete(one.name) : this.hidden.add(one.name);
        this.legend();
        this.draw();
      });
      return button;
    });
    box.replaceChildren(...buttons);
    if (this.view.heat) {
      const scale = document.createElement("span"), bar = document.createElement("i");
      const most = this.view.heat.cells.reduce((top, [, , count]) => Math.max(top, count), 1);
      scale.className = "scale";
      scale.append("1", bar, `${UNITS.count(most)} ${this.view.heat.unit}`);
      box.append(scale);
    }
  }

  point(event) {
    const box = this.plot.getBoundingClientRect(), { x, frame } = this.drawn;
    const at = [event.clientX - box.left, event.clientY - box.top];
    if (at[0] < frame.left - 8 || at[0] > frame.right + 8) return this.leave();
    const value = x.value(Math.min(Math.max(at[0], frame.left), frame.right));
    (synced.get(this.chart.sync) || [this]).forEach((figure) => figure.cross(value));
    const dot = this.nearest(at);
    if (dot) add(this.over, "circle", { class: "ring", cx: dot.at[0], cy: dot.at[1], r: 6 });
    this.say(at, dot ? this.dotLines(dot) : this.lines(value, at));
  }

  leave() {
    (synced.get(this.chart.sync) || [this]).forEach((figure) => figure.over && figure.over.replaceChildren());
    this.tip.hidden = true;
  }

  cross(value) {
    const { x, frame } = this.drawn, at = x.at(value);
    this.over.replaceChildren();
    if (at >= frame.left - 1 && at <= frame.right + 1) add(this.over, "line", { class: "cross", x1: at, x2: at, y1: frame.top, y2: frame.bottom });
  }

  /** The point within reach of the pointer, of those that stand for themselves. */
  nearest([px, py]) {
    const { x, y, shown } = this.drawn;
    let best = null, least = REACH;
    for (const one of shown.filter(({ kind }) => kind === "dots" || kind === "crosses")) {
      one.x.forEach((value, k) => {
        if (one.y[k] === null) return;
        const at = [x.at(value), y.at(one.y[k])], far = Math.hypot(at[0] - px, at[1] - py);
        if (far < least) { least = far; best = { one, k, at }; }
      });
    }
    return best;
  }

  dotLines({ one, k }) {
    const { x, y } = this.view, words = (axis, value) => [axis.label || (axis === x ? "at" : one.name), UNITS[axis.unit](value)];
    return [
      ...(one.tips[k] ? [[one.tips[k], "", one.colour]] : [[one.name, "", one.colour]]),
      words(x, one.x[k]),
      ...(one.kind === "crosses" ? [] : [words(y, one.y[k])]),
    ];
  }

  /** What every line says at this place, and the cell of a heat map. */
  lines(value, [, py]) {
    const { x, y, heat } = this.view, found = [[x.label || "at", UNITS[x.unit](value)]];
    if (heat) {
      const column = heat.edges.findIndex((edge, k) => edge <= value && value < heat.edges[k + 1]);
      const row = Math.floor(Math.log(this.drawn.y.value(py) / heat.floor) / Math.log(heat.step));
      const cell = heat.cells.find(([c, r]) => c === column && r === row);
      const [low, high] = [heat.floor * heat.step ** row, heat.floor * heat.step ** (row + 1)].map(UNITS.duration);
      if (cell) found.push([`${low} to ${high}`, `${UNITS.count(cell[2])} ${heat.unit}`, "c1"]);
    }
    for (const one of this.drawn.shown) {
      if (one.kind === "dots" || one.kind === "crosses") continue;
      const k = closest(one.x, value);
      if (k !== null && one.y[k] !== null) found.push([one.name, UNITS[y.unit](one.y[k]), one.colour]);
    }
    return found;
  }

  say([px, py], lines) {
    this.tip.replaceChildren(...lines.map(([name, value, hue]) => {
      const line = document.createElement("div");
      if (hue) { const swatch = document.createElement("i"); swatch.style.color = colour(hue); line.append(swatch); }
      line.append(name);
      if (value) line.append(Object.assign(document.createElement("b"), { textContent: value }));
      return line;
    }));
    this.tip.hidden = false;
    const left = px + 16 + this.tip.offsetWidth > this.width ? px - 16 - this.tip.offsetWidth : px + 16;
    this.tip.style.left = `${Math.max(0, Math.min(left, this.width - this.tip.offsetWidth))}px`;
    this.tip.style.top = `${Math.max(0, Math.min(py - 12, this.chart.height - this.tip.offsetHeight))}px`;
  }
}

/** Index of the value nearest to one on the x axis; x values ascend. */
function closest(values, wanted) {
  if (!values.length) return null;
  let low = 0, high = values.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    values[middle] <= wanted ? (low = middle) : (high = middle);
  }
  return wanted - values[low] <= values[high] - wanted ? low : high;
}

const dark = matchMedia("(prefers-color-scheme: dark)");
const theme = document.getElementById("theme");
const paint = (name) => {
  document.documentElement.dataset.theme = name;
  theme.textContent = name === "dark" ? "Light" : "Dark";
};
paint(dark.matches ? "dark" : "light");
dark.addEventListener("change", () => paint(dark.matches ? "dark" : "light"));
theme.addEventListener("click", () => paint(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));

for (const root of document.querySelectorAll("figure[data-chart]")) {
  new Figure(root, CHARTS.find((chart) => chart.id === root.dataset.chart));
}
