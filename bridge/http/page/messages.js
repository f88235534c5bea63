// The list of messages: parked, dead or ended, with filters that are kept in the address.
import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { get, usePoll } from "./api.js";
import { Badge, Command, Due, Empty, Trouble, Unknown, When } from "./parts.js";
import { address, changed, go, link, say, status, statusPoll, useMay, useRoutes, useSeconds } from "./state.js";
import { askMany, askOne, listCommand, fromInput, toInput, verbsFor, VERBS } from "./verbs.js";
import { bytes, count, fine, span } from "./words.js";

const TABS = [
  ["parked", "Parked"],
  ["dead", "Dead"],
  ["history", "History"],
];
/** Due ranges. The API reads a duration as "from now". */
const RANGES = {
  "": {},
  overdue: { due_before: "0s" },
  "5m": { due_before: "5m" },
  "1h": { due_before: "1h" },
  "24h": { due_before: "24h" },
  later: { due_after: "24h" },
};
const NAMES = [
  ["", "any time"],
  ["overdue", "overdue"],
  ["5m", "next 5m"],
  ["1h", "next 1h"],
  ["24h", "next 24h"],
  ["later", "later than 24h"],
  ["custom", "from … to …"],
];
const PLAIN = ["route", "key", "header", "min_size", "min_tries", "reason"];
/** Filters that need the message itself, which the history has not. */
const STORED = new Set(["header", "min_size", "min_tries"]);
const EXPORT_MAX = 20000;
const PAGE = 50;
/** A list that is older says so. */
const SNAPSHOT_MS = 5000;

/** What the API is asked, from the address. */
export function filterOf(query) {
  const range =
    query.due === "custom" ? { due_after: query.due_after, due_before: query.due_before } : (RANGES[query.due] ?? {});
  const names = query.state === "history" ? PLAIN.filter((name) => !STORED.has(name)) : PLAIN;
  const given = Object.fromEntries(
    names.map((name) => [name, name.startsWith("min_") ? Number(query[name] || 0) : query[name]]),
  );
  const all = { state: query.state || "parked", ...given, ...range };
  return Object.fromEntries(Object.entries(all).filter(([, value]) => value));
}

/**
 * Read on until a page is full, all was looked at, or `stopped` says so. A request looks at a bounded number of messages.
 * What took more than one request is a snapshot: it is not asked for again every 2 s.
 */
export async function search(path, query, signal, show, stopped, ask = get) {
  const messages = [];
  let looked = 0;
  let page = { next: query.cursor };
  for (let asked = 1; ; asked++) {
    page = await ask(path, { ...query, limit: PAGE - messages.length, cursor: page.next }, signal);
    messages.push(...page.messages);
    looked += page.looked_at;
    const found = { ...page, messages: [...messages], looked_at: looked, snapshot: asked > 1, stopped: stopped() };
    if (!page.next || messages.length >= PAGE || found.stopped) return found;
    show(found);
  }
}

/** A hook: the list of messages, and a function that stops a long search. */
function useMessages(filter, cursor, held) {
  const halt = useRef(false);
  const load = (path, query, signal, show) => {
    halt.current = false;
    return search(path, query, signal, show, () => halt.current);
  };
  const stop = () => {
    halt.current = true;
  };
  return { ...usePoll("messages", { ...filter, cursor }, 2000, load, held), stop };
}

/** An input that keeps what is being typed while the list refreshes, and gives it on Enter or when it is left. */
function Typed({ value, onChange, ...more }) {
  const [text, setText] = useState(value);
  useEffect(() => setText(value), [value]);
  return html`<input ...${more} value=${text} onInput=${(e) => setText(e.target.value)} onChange=${(e) => e.target.checkValidity() && onChange(e.target.value.trim())} />`;
}

function Filters({ query, routes, state }) {
  const set = (name, value) => go("messages", { ...query, cursor: "", [name]: value });
  const text = (name, label, hint, more = {}) =>
    html`<label class="field"><span>${label}</span>
    <${Typed} value=${query[name] ?? ""} placeholder=${hint} onChange=${(value) => set(name, value)} ...${more} /></label>`;
  const active = PLAIN.some((name) => query[name]) || query.due;
  return html`<form class="filters" role="search" aria-label="Filter" onSubmit=${(e) => e.preventDefault()}>
    <label class="field"><span>Route</span><select value=${query.route ?? ""} onChange=${(e) => set("route", e.target.value)}>
      <option value="">all routes</option>${routes.map((name) => html`<option value=${name} key=${name}>${name}</option>`)}</select></label>
    ${text("key", "Key", "order-4711", { id: "filter-first" })}
    <label class="field"><span>${state === "history" ? "Ended" : "Due"}</span><select value=${query.due ?? ""} onChange=${(e) => set("due", e.target.value)}>
      ${NAMES.filter(([value]) => state !== "history" || !value || value === "custom").map(([value, name]) => html`<option value=${value} key=${value}>${name}</option>`)}</select></label>
    ${
      query.due === "custom" &&
      ["due_after", "due_before"].map(
        (name) =>
          html`<label class="field" key=${name}><span>${name === "due_after" ? "From" : "To"}</span>
      <${Typed} type="datetime-local" step="1" value=${toInput(query[name])} onChange=${(value) => set(name, fromInput(value))} /></label>`,
      )
    }
    ${state !== "parked" && text("reason", "Reason", "unroutable")}
    ${
      state !== "history" && [
        text("header", "Header", "tenant=acme", { pattern: "[^=]+=.*" }),
        text("min_size", "Min size", "bytes", { inputmode: "numeric", pattern: "\\d*", class: "narrow" }),
        text("min_tries", "Min tries", "1", { inputmode: "numeric", pattern: "\\d*", class: "narrow" }),
      ]
    }
    <button type="button" class="small clear" disabled=${!active} onClick=${() => go("messages", { state: query.state })}>Clear</button>
  </form>`;
}

/** Dead letters by reason, each with a retry of all of them. */
function Reasons({ query }) {
  const { data, error } = usePoll("dead/reasons", {}, 5000);
  const may = useMay("operator");
  const list = data?.reasons ?? [];
  if (error) return html`<${Trouble} error=${error} />`;
  if (!list.length) return null;
  return html`<ul class="reasons" aria-label="Dead letters by reason">${list.map(
    (one) =>
      html`<li key=${one.reason}>
    <a href=${link("messages", { ...query, reason: query.reason === one.reason ? "" : one.reason, cursor: "" })}
      aria-current=${query.reason === one.reason ? "true" : undefined}><b>${count(one.count)}</b> ${one.reason || "no reason"}</a>
    ${
      may &&
      html`<button type="button" class="small" aria-label=${`Retry all with reason ${one.reason}`}
      onClick=${() => askMany("retry", { filter: { ...filterOf(query), state: "dead", reason: one.reason } })}>Retry all</button>`
    }
  </li>`,
  )}
  ${data.complete === false && html`<li class="dim">Partial: counted ${count(data.looked_at)} of ${count(data.total)}</li>`}</ul>`;
}

const place = (one) => one.routing_key ?? one.record_key ?? "";

function Row({ one, at, state, checked, onCheck, may }) {
  const shown = one.key || place(one) || one.id;
  return html`<tr class=${checked ? "row chosen" : "row"} data-id=${one.id}>
    <td class="pick">${may && state !== "history" && html`<input type="checkbox" checked=${checked} onChange=${onCheck} aria-label=${`Select ${shown}`} />`}</td>
    <td class="c-key"><a class="open" href=${link(`messages/${one.id}`)}>${shown}</a>${shown !== one.id && html`<span class="sub"><code>${one.id}</code></span>`}</td>
    <td class="c-route" data-label="Route">${one.route || "–"}${place(one) && one.key ? html`<span class="sub">${place(one)}</span>` : html`<span class="sub">${one.broker}</span>`}</td>
    ${state === "parked" && html`<td class="c-due" data-label="Due"><${Due} message=${one} at=${at} /></td>`}
    ${
      state === "dead" &&
      html`<td class="c-due" data-label="Died"><${When} ms=${one.died_ms ?? Date.parse(one.died)} both /></td>
      <td class="c-reason" data-label="Reason"><span class="clamp" title=${one.reason}>${one.reason}</span></td>`
    }
    ${
      state === "history" &&
      html`<td class="c-end" data-label="Became"><${Badge} is=${one.state} /></td>
      <td class="c-due" data-label="Due"><${When} ms=${one.due_ms} both /></td>
      <td class="num" data-label="Late">${lateness(one)}</td>`
    }
    <td class="num c-size" data-label="Size">${bytes(one.size)}</td>
    <td class="num c-tries" data-label="Tries">${one.tries}</td>
    <td class="acts">${
      may &&
      verbsFor(state).map(
        (verb) =>
          html`<button type="button" class="small" key=${verb} aria-label=${`${VERBS[verb].name} ${shown}`}
      data-key=${VERBS[verb].key} onClick=${() => askOne(verb, { ...one, seen_ms: at })}>${verb === "deliver" ? "Deliver" : VERBS[verb].name}</button>`,
      )
    }</td>
  </tr>`;
}

const lateness = (one) => (one.state === "delivered" ? fine(one.late_ms) : "–");

const HEADS = {
  parked: [
    ["Message", "c-key"],
    ["Route", "c-route"],
    ["Due", "c-due"],
  ],
  dead: [
    ["Message", "c-key"],
    ["Route", "c-route"],
    ["Died", "c-due"],
    ["Reason", "c-reason"],
  ],
  history: [
    ["Message", "c-key"],
    ["Route", "c-route"],
    ["Became", "c-end"],
    ["Due", "c-due"],
    ["Late", "num c-late"],
  ],
};

async function exportAll(filter) {
  const lines = [];
  let cursor = "";
  do {
    const page = await get("messages", { ...filter, limit: 200, cursor });
    lines.push(...page.messages.map((one) => JSON.stringify(one)));
    cursor = page.next;
  } while (cursor && lines.length < EXPORT_MAX);
  const file = new Blob([`${lines.join("\n")}\n`], { type: "application/jsonl" });
  const anchor = Object.assign(document.createElement("a"), {
    href: URL.createObjectURL(file),
    download: `postdate-${filter.state}.jsonl`,
  });
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(anchor.href), 10000);
  say(
    `Exported: ${count(lines.length)} messages.${cursor ? ` These are the first. For all use: ${listCommand(filter, " --all -o jsonl") || "the API"}` : ""}`,
  );
}

const EMPTY = {
  parked: ["No message is parked.", "postdate send ROUTE 'hello' --in 1m"],
  dead: ["No dead letter. Every message went where it should.", "postdate list --state dead"],
  history: ["Nothing was delivered, cancelled or replaced yet.", "postdate deliver ID"],
};

function Toolbar({ state, filter, chosen, everything, setEverything, clear, busy, onExport }) {
  const may = useMay("operator");
  const any = everything || chosen.size > 0;
  const target = everything ? { filter } : { ids: [...chosen] };
  return html`<div class="toolbar" role="toolbar" aria-label="Actions on the selection">
    ${
      may &&
      state !== "history" &&
      html`<span class="picked" role="status">${everything ? "All that match" : `Selected: ${count(chosen.size)}`}</span>
      <button type="button" class="small" aria-pressed=${String(everything)} onClick=${() => setEverything(!everything)}>Select all matching</button>
      <button type="button" class="small" disabled=${!any} data-clear onClick=${clear}>Clear selection</button>
      <span class="gap"></span>
      ${verbsFor(state).map(
        (verb) =>
          html`<button type="button" key=${verb} class=${VERBS[verb].danger ? "danger" : ""} disabled=${!any}
        data-key=${VERBS[verb].key} onClick=${() => askMany(verb, target, clear)}>${VERBS[verb].name} …</button>`,
      )}`
    }
    ${(!may || state === "history") && html`<span class="gap"></span>`}
    <button type="button" disabled=${busy} onClick=${onExport}>Export JSONL</button>
  </div>`;
}

export function Messages() {
  const { query } = address.use();
  const state = TABS.some(([key]) => key === query.state) ? query.state : "parked";
  const filter = filterOf({ ...query, state });
  const of = JSON.stringify(filter);
  const routes = useRoutes()?.map((one) => one.name) ?? [];
  const [chosen, setChosen] = useState(new Set());
  const [everything, setEverything] = useState(false);
  const poll = useMessages(filter, query.cursor ?? "", everything || chosen.size > 0);
  const { data, error, stale } = poll;
  const away = [error, statusPoll.use().error].find((one) => one && (!one.status || one.status >= 500));
  const [busy, setBusy] = useState(false);
  const may = useMay("operator");
  const clear = () => {
    setChosen(new Set());
    setEverything(false);
  };
  useEffect(clear, [of, query.cursor]);
  // Stale: an empty list says nothing yet.
  const list = stale && !(data?.messages.length && poll.of.includes(`state=${state}`)) ? null : data?.messages;
  const pick = (id) => {
    const next = new Set(chosen);
    if (!next.delete(id)) next.add(id);
    setChosen(next);
  };
  const whole = list?.length > 0 && list.every((one) => chosen.has(one.id));
  const onExport = async () => {
    setBusy(true);
    await exportAll(filter).catch((problem) => say(problem.message, true));
    setBusy(false);
  };
  return html`<h1>Messages</h1>
    <nav class="tabs" aria-label="State">${TABS.map(
      ([key, name]) =>
        html`<a key=${key} href=${link("messages", { ...query, state: key, cursor: "", reason: "", due: key === "history" ? "" : query.due })}
      aria-current=${key === state ? "page" : undefined}>${name}</a>`,
    )}</nav>
    <${Filters} query=${query} routes=${routes} state=${state} />
    ${state === "dead" && html`<${Reasons} query=${query} />`}
    <${Toolbar} ...${{ state, filter, chosen, everything, setEverything, clear, busy, onExport }} />
    <${Trouble} error=${error} />
    <${Searching} poll=${poll} state=${state} />
    <div class=${stale || error ? "list stale" : "list"} aria-busy=${String(stale)}>
      <table class=${`messages of-${state}`}><thead><tr>
        <th class="pick" scope="col">${
          may && state !== "history"
            ? html`<input type="checkbox" aria-label="Select this page" checked=${whole}
          onChange=${() => setChosen(whole ? new Set() : new Set(list.map((one) => one.id)))} />`
            : html`<span class="hidden">Selection</span>`
        }</th>
        ${HEADS[state].map(([name, style]) => html`<th scope="col" key=${name} class=${style}>${name}</th>`)}
        <th scope="col" class="num c-size">Size</th><th scope="col" class="num c-tries">Tries</th><th scope="col" class="acts">${may && state !== "history" ? "Actions" : html`<span class="hidden">Actions</span>`}</th></tr></thead>
      <tbody>${list?.map((one) => html`<${Row} key=${one.id + one.state} one=${one} at=${data.now_ms} state=${state} may=${may} checked=${everything || chosen.has(one.id)} onCheck=${() => pick(one.id)} />`)}</tbody></table>
      ${!list?.length && (away ? html`<${Unknown} error=${away} />` : list && !poll.busy && html`<${Nothing} state=${state} filter=${filter} data=${data} />`)}
    </div>
    <${Pages} query=${query} data=${data} shown=${list?.length ?? 0} filter=${filter} />`;
}

/** How far a long search is, with a stop; and how old a list is that does not refresh. */
function Searching({ poll: { data, error, busy, at, stop, stale }, state }) {
  useSeconds();
  const total = status.use()?.[state];
  const age = Date.now() - at;
  if (busy && data && !stale) {
    return html`<div class="note searching" role="status"><span>Looked at ${count(data.looked_at)}${total ? ` of ${count(total)}` : ""}, found ${count(data.messages.length)}</span>
      <progress max=${total || 1} value=${total ? Math.min(total, data.looked_at) : undefined} aria-label="Search"></progress>
      <button type="button" class="small" onClick=${stop}>Stop</button></div>`;
  }
  if (!data || at == null || (age < SNAPSHOT_MS && !data.snapshot && !error)) return null;
  return html`<div class="note searching"><span>${data.snapshot ? `${data.stopped && data.next ? "Stopped" : "Searched"}: looked at ${count(data.looked_at)}. ` : ""}List of ${span(age)} ago</span>
    <button type="button" class="small" onClick=${changed}>Refresh</button></div>`;
}

function Nothing({ state, filter, data }) {
  if (data.next)
    return html`<${Empty}>Nothing found in the ${count(data.looked_at)} messages looked at so far. “Next” goes on from there.</${Empty}>`;
  const filtered = Object.keys(filter).length > 1;
  return filtered
    ? html`<${Empty} command=${listCommand(filter)}>No message matches this filter.</${Empty}>`
    : html`<${Empty} command=${EMPTY[state][1]}>${EMPTY[state][0]}</${Empty}>`;
}

function Pages({ query, data, shown, filter }) {
  const same = listCommand(filter);
  return html`<footer class="pages">
    <span class="dim">Shown: ${count(shown)}${data?.looked_at > shown && data?.next ? `, looked at ${count(data.looked_at)}` : ""}</span>
    <span class="gap"></span>
    <button type="button" disabled=${!query.cursor} onClick=${() => go("messages", { ...query, cursor: "" })}>First</button>
    <button type="button" disabled=${!query.cursor} onClick=${() => history.back()}>Back</button>
    <button type="button" disabled=${!data?.next} onClick=${() => go("messages", { ...query, cursor: data.next })}>Next</button>
  </footer>
  ${same && html`<${Command} name="Terminal" text=${same} />`}`;
}

// -- keyboard

/** j, k: the next and previous row. x: select it. Return whether the key was used. */
export function rowKey(key) {
  const rows = [...document.querySelectorAll("tr.row")];
  if (!rows.length) return false;
  const at = rows.indexOf(document.activeElement?.closest("tr.row"));
  if (key === "x") {
    rows[at]?.querySelector("input[type=checkbox]")?.click();
    return at >= 0;
  }
  const next = rows[Math.min(rows.length - 1, Math.max(0, at + (key === "j" ? 1 : -1)))];
  next.querySelector("a.open").focus();
  next.scrollIntoView({ block: "nearest" });
  return true;
}

/** A verb's key: for the selection, else for the row with the focus, else for the message that is shown. */
export function verbKey(key) {
  const within = (place) => place?.querySelector(`button[data-key="${key}"]:not([disabled])`);
  const button =
    within(document.querySelector(".toolbar")) ??
    within(document.activeElement?.closest("tr.row")) ??
    within(document.querySelector(".title"));
  button?.click();
  return Boolean(button);
}
