// The timeline: what was delivered on the left, what is due on the right, now in the middle.
import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { DARK, go, theme, zone } from "./state.js";
import { count, short, span as spanText, tick, zoneName } from "./words.js";

const HEIGHT = 220;
/** Lateness classes of a delivery, from the best: name and variable of the colour. */
const CLASSES = [
  ["on time", "--late-0"],
  ["late by up to 1s", "--late-1"],
  ["up to 10s", "--late-2"],
  ["more", "--late-3"],
];

/** The columns of the chart: x, then the lateness classes from the whole stack down to the part on time, then due. */
function columns(data) {
  const past = data.past ?? [];
  const due = data.due ?? [];
  const none = due.map(() => null);
  const upTo = (last) => past.map((slot) => slot.late.slice(0, last + 1).reduce((sum, one) => sum + one, 0));
  return [
    [...past, ...due].map((slot) => slot.at_ms / 1000),
    ...[3, 2, 1, 0].map((last) => [...upTo(last), ...none]),
    [...past.map(() => null), ...due.map((slot) => slot.count)],
  ];
}

/** A sentence for those who do not see the chart. */
function summary(data, name, overdue) {
  const past = data.past.reduce((sum, slot) => sum + slot.count, 0);
  const late = data.past.reduce((sum, slot) => sum + slot.count - slot.late[0], 0);
  const due = data.due.reduce((sum, slot) => sum + slot.count, 0);
  return `Last ${name}: delivered ${count(past)}, of these late by more than 100ms: ${count(late)}. Next ${name}: due ${count(due)}${overdue ? `, overdue ${count(overdue)}` : ""}.`;
}

function described(data, at) {
  if (at == null) return "";
  const past = data.past.length;
  const slot = at < past ? data.past[at] : data.due[at - past];
  if (!slot) return "";
  const days = data.span_ms > 86400000 / 2;
  const when = `${tick(slot.at_ms, days)} to ${tick(slot.at_ms + data.step_ms, days)} ${zoneName(slot.at_ms)}`;
  if (at >= past) return `${when}: due ${count(slot.count)}`;
  const parts = slot.late.map((number, place) => number && `${CLASSES[place][0]} ${count(number)}`).filter(Boolean);
  return `${when}: delivered ${count(slot.count)}${parts.length ? ` (${parts.join(", ")})` : ""}`;
}

function drawHalves(chart, colour, data) {
  const { ctx, bbox } = chart;
  const middle = chart.valToPos(data.now_ms / 1000, "x", true);
  ctx.save();
  ctx.fillStyle = colour("--ahead");
  ctx.fillRect(middle, bbox.top, bbox.left + bbox.width - middle, bbox.height);
  ctx.restore();
}

function drawNow(chart, colour, { now_ms, late }) {
  const { ctx, bbox } = chart;
  const middle = Math.round(chart.valToPos(now_ms / 1000, "x", true));
  const ratio = devicePixelRatio;
  ctx.save();
  ctx.fillStyle = colour("--ink");
  ctx.fillRect(middle - ratio / 2, bbox.top - 14 * ratio, 1.5 * ratio, bbox.height + 14 * ratio);
  ctx.font = `600 ${11 * ratio}px system-ui, sans-serif`;
  ctx.textBaseline = "top";
  ctx.textAlign = "right";
  ctx.fillStyle = colour("--dim");
  ctx.fillText("delivered", middle - 8 * ratio, bbox.top - 15 * ratio);
  ctx.textAlign = "left";
  if (late) ctx.fillStyle = colour("--bad");
  ctx.fillText(late ? `due, and overdue: ${count(late)}` : "due", middle + 8 * ratio, bbox.top - 15 * ratio);
  ctx.restore();
}

/** One bar for each slot, from its start to its end: slots without deliveries are missing, and the first due one is short. */
function bars(latest) {
  return (chart, place, first, last) => {
    const { past, due, now_ms: now, step_ms: step } = latest.current;
    const fill = new Path2D();
    const bottom = chart.valToPos(0, "y", true);
    for (let at = first; at <= last; at++) {
      const number = chart.data[place][at];
      if (!number) continue;
      const isPast = at < past.length;
      const start = isPast ? past[at].at_ms : due[at - past.length].at_ms;
      const next = isPast ? Math.min(start + step, now) : (due[at - past.length + 1]?.at_ms ?? start + step);
      const left = Math.round(chart.valToPos(start / 1000, "x", true));
      const right = Math.round(chart.valToPos(next / 1000, "x", true)) - 1;
      const top = Math.min(chart.valToPos(number, "y", true), bottom - 1);
      fill.rect(left, top, Math.max(1, right - left), bottom - top);
    }
    return { fill, stroke: null, clip: null, gaps: null, flags: 1 };
  };
}

function options(width, colour, latest, onPoint) {
  const axis = { stroke: colour("--dim"), font: "11px system-ui, sans-serif", ticks: { show: false } };
  const series = [...CLASSES].reverse().map(([label, name]) => ({ label, fill: colour(name) }));
  const all = [...series, { label: "due", fill: colour("--due") }];
  return {
    width,
    height: HEIGHT,
    legend: { show: false },
    padding: [18, 22, 0, 0],
    scales: {
      x: {
        time: false,
        range: () => [-1, 1].map((side) => (latest.current.now_ms + side * latest.current.span_ms) / 1000),
      },
      y: { range: (_, least, most) => [0, Math.max(4, most * 1.05)] },
    },
    axes: [
      {
        ...axis,
        grid: { show: false },
        size: 28,
        splits: () => splits(latest.current),
        values: (_, found) => found.map((at) => tick(at * 1000, latest.current.span_ms > 43200000)),
      },
      {
        ...axis,
        grid: { stroke: colour("--line"), width: 1 },
        size: 44,
        values: (_, found) => found.map((number) => (Number.isInteger(number) ? short(number) : "")),
      },
    ],
    series: [{}, ...all.map((one) => ({ ...one, width: 0, paths: bars(latest), points: { show: false } }))],
    cursor: { x: true, y: false, drag: { x: false, y: false }, points: { show: false } },
    hooks: {
      drawClear: [(chart) => drawHalves(chart, colour, latest.current)],
      draw: [(chart) => drawNow(chart, colour, latest.current)],
      setCursor: [(chart) => onPoint(chart.cursor.left < 0 ? null : slotAt(chart, latest.current))],
    },
  };
}

/** Which slot is under the cursor. uPlot names the nearest start, and a slot lies to the right of its start. */
function slotAt(chart, data) {
  const ms = chart.posToVal(chart.cursor.left, "x") * 1000;
  const slots = [...data.past, ...data.due];
  const found = slots.findIndex((slot) => ms >= slot.at_ms && ms < slot.at_ms + data.step_ms);
  return found < 0 ? null : found;
}

/** Five marks, the same distance apart, with now in the middle. */
function splits(data) {
  return [-1, -0.5, 0, 0.5, 1].map((share) => (data.now_ms + share * data.span_ms) / 1000);
}

export function Timeline({ data, name, late }) {
  const box = useRef();
  const chart = useRef(null);
  const latest = useRef(data);
  const [point, setPoint] = useState(null);
  const look = theme.use();
  zone.use();
  latest.current = { ...data, late };
  useEffect(() => {
    const make = () => {
      chart.current?.destroy();
      const style = getComputedStyle(document.documentElement);
      const colour = (variable) => style.getPropertyValue(variable).trim();
      const made = options(box.current.clientWidth, colour, latest, setPoint);
      chart.current = new window.uPlot(made, columns(latest.current), box.current);
    };
    make();
    const resized = new ResizeObserver(() => chart.current.setSize({ width: box.current.clientWidth, height: HEIGHT }));
    resized.observe(box.current);
    DARK.addEventListener("change", make);
    return () => {
      resized.disconnect();
      DARK.removeEventListener("change", make);
      chart.current.destroy();
      chart.current = null;
    };
  }, [look, zone.get()]);
  useEffect(() => chart.current?.setData(columns(data)), [data, late]);
  const open = () => {
    const slot = point == null ? null : data.due[point - data.past.length];
    if (!slot) return;
    const text = (ms) => new Date(ms).toISOString();
    go("messages", { due: "custom", due_after: text(slot.at_ms), due_before: text(slot.at_ms + data.step_ms) });
  };
  return html`<figure class="timeline">
    <div class="chart" ref=${box} role="img" aria-label=${summary(data, name, late)} onClick=${open}></div>
    <figcaption>
      <span class="legend">
        ${CLASSES.map(([label], place) => html`<span class="key"><i class=${`late-${place}`}></i>${label}</span>`)}
        <span class="key"><i class="due"></i>due</span>
      </span>
      <span class="point" aria-hidden="true">${described(data, point) || `one bar: ${spanText(data.step_ms)}`}</span>
    </figcaption>
  </figure>`;
}
