// Numbers, durations and moments as text. Moments come from the API; nothing here decides when a message is due.
import { zone } from "./state.js";

const UNITS = [
  ["d", 86400000],
  ["h", 3600000],
  ["m", 60000],
  ["s", 1000],
];
const COUNT = new Intl.NumberFormat("en-US");
const SHORT = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });

/** "12,340"; "–" for what is not known. */
export const count = (number) => (number == null ? "–" : COUNT.format(number));
export const short = (number) => (number == null ? "–" : number < 100000 ? COUNT.format(number) : SHORT.format(number));

/** "2d 3h", "3m 12s", "850ms", as the commands write durations: the two largest units. */
export function span(ms) {
  const away = Math.abs(Math.round(ms));
  if (away < 1000) return `${away}ms`;
  const at = UNITS.findIndex(([, size]) => away >= size);
  const [unit, size] = UNITS[at];
  const first = Math.floor(away / size);
  const next = UNITS[at + 1];
  const second = next ? Math.floor((away % size) / next[1]) : 0;
  return second ? `${first}${unit} ${second}${next[0]}` : `${first}${unit}`;
}

/** Lateness and gaps: "2.4ms", "1.25s". */
export function fine(ms) {
  if (ms == null) return "–";
  if (Math.abs(ms) < 10) return `${Math.round(ms * 10) / 10}ms`;
  if (Math.abs(ms) < 1000) return `${Math.round(ms)}ms`;
  return Math.abs(ms) < 60000 ? `${(ms / 1000).toFixed(2)}s` : span(ms);
}

export function bytes(size) {
  if (size == null) return "–";
  let at = 0;
  let left = size;
  for (; left >= 1024 && at < 4; at++) left /= 1024;
  const digits = at && left < 10 ? 1 : 0;
  return `${left.toFixed(digits)} ${["B", "KiB", "MiB", "GiB", "TiB"][at]}`;
}

export function rate(perSecond) {
  if (perSecond == null) return "–";
  return `${perSecond < 10 ? Math.round(perSecond * 10) / 10 : count(Math.round(perSecond))}/s`;
}

const pad = (number, width = 2) => String(number).padStart(width, "0");

function parts(ms) {
  const at = new Date(ms);
  const get = (name) => (zone.get() === "utc" ? at[`getUTC${name}`]() : at[`get${name}`]());
  return {
    y: get("FullYear"),
    mo: get("Month") + 1,
    d: get("Date"),
    h: get("Hours"),
    m: get("Minutes"),
    s: get("Seconds"),
    ms: get("Milliseconds"),
  };
}

/** "UTC", or the browser's zone at that moment. */
export function zoneName(ms) {
  if (zone.get() === "utc") return "UTC";
  const found = new Intl.DateTimeFormat("en-GB", { timeZoneName: "short" }).formatToParts(new Date(ms));
  return found.find((part) => part.type === "timeZoneName")?.value ?? "local";
}

/** "2026-11-22 19:50:12 UTC"; `exact` adds milliseconds. */
export function moment(ms, exact = false) {
  if (ms == null) return "–";
  const { y, mo, d, h, m, s, ms: rest } = parts(ms);
  return `${y}-${pad(mo)}-${pad(d)} ${pad(h)}:${pad(m)}:${pad(s)}${exact ? `.${pad(rest, 3)}` : ""} ${zoneName(ms)}`;
}

/** "19:50:12 UTC" */
export const clock = (ms) => moment(ms).slice(11);

/** "19:50", and the day where the span is longer than one: for axes. */
export function tick(ms, days) {
  const { mo, d, h, m } = parts(ms);
  return days ? `${pad(mo)}-${pad(d)} ${pad(h)}:${pad(m)}` : `${pad(h)}:${pad(m)}`;
}

/** A moment of the API, which may be text, as Unix ms. */
export const asMs = (value) => (value == null ? null : typeof value === "number" ? value : Date.parse(value));

/** A list that was seen longer ago is a snapshot: its words name its age. */
const SNAPSHOT_MS = 5000;

/**
 * How the due moment of a message that was seen `at` a moment reads now: its words, and "bad", "soon" or "". What came due
 * since then may have been delivered on time, so only what was overdue when it was seen is called overdue.
 */
export function dueWords(message, now, at = now) {
  const away = message.due_ms - now;
  const seen = now - at > SNAPSHOT_MS ? `, seen ${span(now - at)} ago` : "";
  if (message.state === "dead") return ["not delivered", ""];
  if (message.state === "claimed") return [seen ? `being sent${seen}` : "being sent now", "soon"];
  if (message.state !== "parked") return [span(away) + (away < 0 ? " ago" : " ahead"), ""];
  if (message.held && message.reason?.startsWith("no_route")) return [`held: no instance has its route${seen}`, "bad"];
  if (message.held) return [`held: route paused or at max_rate${seen}`, "warn"];
  const next = asMs(message.next_try);
  if (next != null && next > now) return [`refused, next try in ${span(next - now)}`, "warn"];
  if (message.due_ms - at < -1000) return [`overdue ${span(seen ? at - message.due_ms : away)}${seen}`, "bad"];
  if (away < -1000) return [`was due ${span(away)} ago${seen}`, ""];
  return away < 1000 ? ["due now", "soon"] : [`in ${span(away)}`, ""];
}

/** The same as `dueWords` for the past and future alone. */
export function ago(ms, now) {
  if (ms == null) return "never";
  const away = ms - now;
  return Math.abs(away) < 1000 ? "now" : away > 0 ? `in ${span(away)}` : `${span(away)} ago`;
}

/** Quoted for a POSIX shell. */
export const quoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${String(text).replaceAll("'", `'\\''`)}'`);
