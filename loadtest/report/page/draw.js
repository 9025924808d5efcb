// Drawing one view of a chart as SVG at the width it really has, so that text is never scaled.

const SVG = "http://www.w3.org/2000/svg";
const colour = (name) => `var(--${name})`;

function add(parent, name, attributes = {}, text = null) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== null) node.textContent = text;
  parent.append(node);
  return node;
}

/** Draws a view into an empty <svg>; returns its scales and frame for pointing at it. */
function drawView(svg, view, hidden, width, height) {
  const shown = view.series.filter((one) => !hidden.has(one.name));
  const frame = { left: 62, right: width - 14, top: 10, bottom: height - (view.x.label ? 40 : 24) };
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("height", height);
  const heatEdges = view.heat ? [view.heat.edges[0], view.heat.edges.at(-1)] : [];
  const marksOn = (axis) => view.marks.filter((mark) => mark.axis === axis).map((mark) => mark.at);
  const x = makeScale(view.x, [...shown.flatMap((one) => one.x), ...heatEdges, ...marksOn("x")], frame.left, frame.right);
  const upright = placeMarks(view.marks.filter((mark) => mark.axis === "x"), x, frame);
  frame.top += 15 * upright.reduce((rows, { row }) => Math.max(rows, row + 1), 0);
  const y = makeScale(view.y, [...shown.flatMap((one) => one.y), ...marksOn("y")], frame.bottom, frame.top);
  for (const band of view.bands) {
    const [a, b] = [Math.max(x.at(band.from), frame.left), Math.min(x.at(band.to), frame.right)];
    if (b > a) add(svg, "rect", { class: "band", x: a, y: frame.top, width: b - a, height: frame.bottom - frame.top });
  }
  drawAxes(svg, view, x, y, frame);
  const clip = `clip-${(drawView.count = (drawView.count || 0) + 1)}`;
  add(add(svg, "clipPath", { id: clip }), "rect", {
    x: frame.left - 1, y: frame.top - 8, width: frame.right - frame.left + 8, height: frame.bottom - frame.top + 9,
  });
  const body = add(svg, "g", { "clip-path": `url(#${clip})` });
  if (view.heat) drawHeat(body, view.heat, x, y);
  for (const one of shown) DRAW[one.kind](body, one, x, y, frame);
  upright.forEach((placed) => drawMarkX(svg, placed, frame));
  view.marks.filter((mark) => mark.axis === "y").forEach((mark) => drawMarkY(svg, mark, y.at(mark.at), frame));
  return { x, y, frame, shown };
}

/**
 * Where labels of vertical marks stand: beside their line, towards the middle's far side, each in a row of its own below
 * those whose text passes over it, so that no label covers another and no line crosses one.
 */
function placeMarks(marks, x, frame) {
  const middle = (frame.left + frame.right) / 2;
  const placed = marks.map((mark) => ({ mark, at: x.at(mark.at), flip: x.at(mark.at) > middle }));
  const inward = [
    ...placed.filter(({ flip }) => !flip).sort((a, b) => a.at - b.at),
    ...placed.filter(({ flip }) => flip).sort((a, b) => b.at - a.at),
  ];
  const reach = ({ mark, at, flip }) => { const wide = mark.label.length * 6.6 + 10; return flip ? [at - wide, at] : [at, at + wide]; };
  inward.forEach((one, k) => {
    const [low, high] = reach(one);
    const over = inward.slice(0, k).filter((other) => { const [a, b] = reach(other); return a < high && low < b; });
    one.row = over.reduce((row, other) => Math.max(row, other.row + 1), 0);
  });
  return inward;
}

function drawAxes(svg, view, x, y, frame) {
  for (const tick of y.ticks) {
    const at = y.at(tick);
    add(svg, "line", { class: "grid", x1: frame.left, x2: frame.right, y1: at, y2: at });
    add(svg, "text", { x: frame.left - 8, y: at + 4, "text-anchor": "end" }, UNITS[view.y.unit](tick));
  }
  let free = -Infinity;
  for (const tick of x.ticks) {
    const at = x.at(tick), label = UNITS[view.x.unit](tick), half = label.length * 3.4;
    add(svg, "line", { class: "grid", x1: at, x2: at, y1: frame.bottom, y2: frame.bottom + 4 });
    if (at - half < free) continue;
    const anchor = at + half > frame.right + 12 ? "end" : "middle";
    add(svg, "text", { x: anchor === "end" ? frame.right + 12 : at, y: frame.bottom + 18, "text-anchor": anchor }, label);
    free = at + half + 6;
  }
  if (view.x.label) add(svg, "text", { x: frame.right, y: frame.bottom + 35, "text-anchor": "end" }, view.x.label);
}

function drawHeat(body, heat, x, y) {
  const most = Math.log(1 + heat.cells.reduce((top, [, , count]) => Math.max(top, count), 1));
  for (const [column, row, count] of heat.cells) {
    const [a, b] = [x.at(heat.edges[column]), x.at(heat.edges[column + 1])];
    const [top, bottom] = [y.at(heat.floor * heat.step ** (row + 1)), y.at(heat.floor * heat.step ** row)];
    const strength = 0.1 + 0.9 * (Math.log(1 + count) / most);
    add(body, "rect", { x: a, y: top, width: b - a + 0.3, height: bottom - top + 0.3, fill: colour("c1"), "fill-opacity": strength.toFixed(2) });
  }
}

function drawMarkX(svg, { mark, at, flip, row }, frame) {
  const top = 12 + 15 * row;
  add(svg, "line", { class: "mark", x1: at, x2: at, y1: top - 9, y2: frame.bottom, stroke: colour(mark.colour) });
  add(svg, "text", { class: "label", x: at + (flip ? -5 : 5), y: top, "text-anchor": flip ? "end" : "start" }, mark.label);
}

function drawMarkY(svg, mark, at, frame) {
  add(svg, "line", { class: "mark", x1: frame.left, x2: frame.right, y1: at, y2: at, stroke: colour(mark.colour) });
  const above = at - frame.top > 6; // at the very top there is no room above the line
  add(svg, "text", { class: "label", x: frame.right - 2, y: above ? at - 5 : at + 15, "text-anchor": "end" }, mark.label);
}

/** Stretches without holes: a value that is not known is not drawn as if it were. */
function stretches(one, x, y) {
  const found = [[]];
  one.x.forEach((value, k) => {
    if (value === null || one.y[k] === null) { if (found.at(-1).length) found.push([]); }
    else found.at(-1).push([x.at(value), y.at(one.y[k])]);
  });
  return found.filter((stretch) => stretch.length);
}

const point = ([a, b]) => `${a.toFixed(1)} ${b.toFixed(1)}`;
const straight = (stretch) => `M${stretch.map(point).join("L")}`;
const stepped = (stretch) => `M${point(stretch[0])}${stretch.slice(1).map(([a, b]) => `V${b.toFixed(1)}H${a.toFixed(1)}`).join("")}`;

function stroke(body, one, d) {
  add(body, "path", { class: one.dashed ? "line dashed" : "line", d, stroke: colour(one.colour) });
}

/** Width of bar k: up to the middle between neighbours. */
function barWidth(places, k) {
  const gaps = [places[k] - places[k - 1], places[k + 1] - places[k]].filter((gap) => gap > 0);
  return gaps.length ? Math.min(...gaps) : 12;
}

const DRAW = {
  line: (body, one, x, y) => stretches(one, x, y).forEach((stretch) => stroke(body, one, straight(stretch))),
  step: (body, one, x, y) => stretches(one, x, y).forEach((stretch) => stroke(body, one, stepped(stretch))),
  area: (body, one, x, y, frame) => {
    for (const stretch of stretches(one, x, y)) {
      const [first, last] = [stretch[0][0].toFixed(1), stretch.at(-1)[0].toFixed(1)];
      const d = `${straight(stretch)}L${last} ${frame.bottom}L${first} ${frame.bottom}Z`;
      add(body, "path", { d, fill: colour(one.colour), "fill-opacity": 0.16 });
      stroke(body, one, straight(stretch));
    }
  },
  bars: (body, one, x, y, frame) => {
    const places = one.x.map((value) => x.at(value));
    one.y.forEach((value, k) => {
      if (!value) return;
      const width = Math.max(1.5, barWidth(places, k) - 0.6), top = Math.min(y.at(value), frame.bottom - 1.5);
      add(body, "rect", { x: places[k] - width / 2, y: top, width, height: frame.bottom - top, fill: colour(one.colour), "fill-opacity": 0.75 });
    });
  },
  dots: (body, one, x, y) => one.x.forEach((value, k) => {
    if (one.y[k] === null) return;
    const opacity = one.x.length > 300 ? 0.35 : 0.7;
    add(body, "circle", { cx: x.at(value).toFixed(1), cy: y.at(one.y[k]).toFixed(1), r: one.x.length > 300 ? 2.2 : 3.2, fill: colour(one.colour), "fill-opacity": opacity });
  }),
  crosses: (body, one, x, y) => one.x.forEach((value, k) => {
    const [a, b] = [x.at(value), y.at(one.y[k])];
    add(body, "path", { d: `M${a - 4} ${b - 4}l8 8m0 -8l-8 8`, stroke: colour(one.colour), "stroke-width": 1.8, fill: "none" });
  }),
};
