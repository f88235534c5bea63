// Pieces that several screens use.
import { createContext, html, useContext, useEffect, useLayoutEffect, useRef, useState } from "./vendor/htm-preact.js";
import { dialog, say, useAge, useSeconds, zone } from "./state.js";
import { ago, dueWords, moment, span } from "./words.js";

/** How old the figures of this part of the page are (ms); 0 if they are as good as live. */
export const Old = createContext(0);

/** A moment, relative to now, with the exact text beside it (`both`) or as a tooltip. */
export function When({ ms, both = false }) {
  const now = useSeconds();
  zone.use();
  if (ms == null) return html`<span class="dim">–</span>`;
  const exact = moment(ms, true);
  return both
    ? html`<span class="when"><span>${ago(ms, now)}</span> <time class="dim">${moment(ms)}</time></span>`
    : html`<time title=${exact}>${ago(ms, now)}</time>`;
}

/** When the next message is due. One that is due and not overdue is due now; from old figures that is not known. */
export function Next({ ms, both = false }) {
  const now = useSeconds();
  const old = useContext(Old);
  if (ms == null || ms > now) return html`<${When} ms=${ms} both=${both} />`;
  return old ? html`<span class="dim">–</span>` : html`<time title=${moment(ms, true)}>now</time>`;
}

/** The due moment of a message in words and as an absolute time. The message was seen `at` a moment of the server. */
export function Due({ message, at }) {
  const now = useSeconds();
  zone.use();
  const [words, tone] = dueWords(message, now, at);
  return html`<span class="when" title=${moment(message.due_ms, true)}>
    <span class=${tone}>${words}</span> <time class="dim">${moment(message.due_ms)}</time>
  </span>`;
}

const TONES = {
  running: "good",
  delivered: "good",
  done: "good",
  OK: "good",
  ok: "good",
  parked: "info",
  claimed: "info",
  paused: "warn",
  draining: "warn",
  full: "warn",
  late: "warn",
  refused: "warn",
  "nothing in": "warn",
  held: "warn",
  WARN: "warn",
  warn: "warn",
  stopped: "warn",
  replaced: "plain",
  cancelled: "plain",
  "broker away": "bad",
  dead: "warn",
  failed: "bad",
  FAIL: "bad",
  fail: "bad",
};

export const Badge = ({ is, children }) =>
  html`<span class=${`badge ${TONES[is] ?? "plain"}`}>${children ?? is}</span>`;

/** A badge about what is so now. From old figures it is not known. */
export function LiveBadge({ is, children }) {
  const age = useContext(Old);
  return age
    ? html`<span class="badge plain" title=${`${span(age)} ago: ${children ?? is}`}>unknown</span>`
    : html`<${Badge} is=${is}>${children}</${Badge}>`;
}

export const InstanceBadge = ({ state }) =>
  html`<${LiveBadge} is=${{ well: "ok", warning: "warn" }[state] ?? "fail"}>${state}</${LiveBadge}>`;

/** What stands where a list is empty: a sentence, and the command that would fill it. */
export const Empty = ({ children, command }) =>
  html`<div class="empty">
  <p>${children}</p>
  ${command && html`<${Command} text=${command} />`}
</div>`;

export const SIGN_IN = "Sign in: this page needs a token.";

/** What stands where nothing is known, and not where something is empty. */
export const Unknown = ({ error, why = `${error?.status === 0 ? "postdate" : "the store"} does not answer` }) =>
  html`<${Empty}>${error?.status === 401 ? SIGN_IN : `Not known: ${why}.`}</${Empty}>`;

export const Trouble = ({ error }) => error && html`<p class="trouble" role="alert">${error.message}</p>`;

/** What is wrong with a poll, and how old its figures are then. */
export function Fresh({ poll }) {
  const age = useAge(poll);
  return html`<${Trouble} error=${poll.error} />${age > 0 && html`<p class="note age" role="status">These figures are ${span(age)} old.</p>`}`;
}

/** A line for a shell with a button that copies it. */
export function Command({ text, name = "" }) {
  return text ? html`<${Line} text=${text} name=${name} />` : null;
}

function Line({ text, name }) {
  const [done, set] = useState(false);
  const line = useRef();
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // Browsers have no clipboard on plain HTTP, except on this machine: select the text instead.
      getSelection().selectAllChildren(line.current);
      if (!document.execCommand("copy")) say("Selected. Copy it with Ctrl+C.");
      getSelection().removeAllRanges();
    }
    set(true);
    setTimeout(() => set(false), 1500);
  };
  return html`<div class="command">
    ${name && html`<span class="label">${name}</span>`}
    <code ref=${line} tabindex="0">${text}</code>
    <button type="button" class="small" onClick=${copy} aria-label=${`Copy command ${name}`}>
      ${done ? "Copied" : "Copy"}
    </button>
  </div>`;
}

const NEW = { data: null, at: null };

/** A section with a heading. `of` is the poll of its figures: old ones are marked with their age. */
export function Panel({ title, tools, children, kind = "", of = NEW }) {
  const age = useAge(of);
  return html`<${Old.Provider} value=${age}><section class=${`panel ${kind}${age ? " old" : ""}`}>
    <header class="panel-head"><h2>${title}${age > 0 && html` <span class="age">${span(age)} ago</span>`}</h2><div class="tools">${tools}</div></header>
    ${children}
  </section></${Old.Provider}>`;
}

/** A table that scrolls by itself where it is too wide. `columns`: [heading, class, title]. */
export const Table = ({ label, columns, children, kind = "" }) =>
  html`<div class="scroll" tabindex="0" role="region" aria-label=${label}>
  <table class=${kind}>
    <thead><tr>${columns.map(([name, style = "", title]) => html`<th scope="col" class=${style} title=${title}>${name}</th>`)}</tr></thead>
    <tbody>${children}</tbody>
  </table>
</div>`;

/** Two or more choices of which one is active. */
export const Choice = ({ label, options, value, onChange }) =>
  html`<div class="choice" role="group" aria-label=${label}>
  ${options.map(([key, name]) => html`<button type="button" aria-pressed=${String(key === value)} onClick=${() => onChange(key)}>${name}</button>`)}
</div>`;

/** A native dialog: it traps the focus, and Esc closes it. The page behind it goes on. */
export function Dialog({ title, children, onClose = () => {}, kind = "" }) {
  const box = useRef();
  const close = () => {
    dialog.set(null);
    onClose();
  };
  useLayoutEffect(() => {
    const before = document.activeElement;
    const shown = box.current;
    shown.showModal();
    return () => {
      shown.close(); // while it is modal, nothing outside it takes the focus
      if (before?.isConnected) before.focus();
    };
  }, []);
  useEffect(() => {
    const leave = () => dialog.set(null);
    window.addEventListener("hashchange", leave);
    return () => window.removeEventListener("hashchange", leave);
  }, []);
  return html`<dialog ref=${box} class=${kind} aria-labelledby="dialog-title" onCancel=${(event) => {
    event.preventDefault();
    close();
  }}>
    <header><h2 id="dialog-title">${title}</h2>
      <button type="button" class="small" onClick=${close} aria-label="Close">✕</button></header>
    ${children}
  </dialog>`;
}

export const Field = ({ label, hint, children, wide }) =>
  html`<label class=${wide ? "field wide" : "field"}>
  <span>${label}${hint && html` <small class="dim">${hint}</small>`}</span>${children}
</label>`;

/** Names and values. */
export const Facts = ({ of }) =>
  html`<dl class="facts">
  ${of.filter(([, value]) => value != null && value !== "").map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}
</dl>`;
