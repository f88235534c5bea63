// The page: navigation, search, the refresh of the status, the keyboard, and one screen at a time.
import { html, render, useEffect, useState } from "./vendor/htm-preact.js";
import { usePoll } from "./api.js";
import { Dialog, Empty, Field, Trouble } from "./parts.js";
import {
  address,
  asksToken,
  dialog,
  go,
  link,
  paint,
  paused,
  STATUS_MS,
  status,
  statusPoll,
  theme,
  toast,
  token,
  useAge,
  useMay,
  useSeconds,
  zone,
} from "./state.js";
import { Message, Search } from "./message.js";
import { Messages, rowKey, verbKey } from "./messages.js";
import { Overview } from "./overview.js";
import { Routes } from "./routes.js";
import { Send } from "./send.js";
import { Instances, Levels, System } from "./system.js";
import { VERBS } from "./verbs.js";
import { clock, short, span, zoneName } from "./words.js";

const NAV = [
  ["", "Overview"],
  ["messages", "Messages"],
  ["routes", "Routes"],
  ["levels", "Levels"],
  ["instances", "Instances"],
  ["system", "System"],
];
const SCREENS = {
  "": Overview,
  messages: Messages,
  routes: Routes,
  levels: Levels,
  instances: Instances,
  system: System,
  search: Search,
  send: Send,
};
const THEMES = { auto: "dark", dark: "light", light: "auto" };

function Nav({ open }) {
  const { path } = address.use();
  const now = status.use();
  const may = useMay("operator");
  const old = useAge(statusPoll.use()) ? "pill old" : "pill";
  return html`<nav id="nav" class=${open ? "nav open" : "nav"} aria-label="Screens">
    <ul>${NAV.map(
      ([key, name]) =>
        html`<li key=${key}><a href=${link(key)} aria-current=${path[0] === key ? "page" : undefined}>${name}
      ${key === "messages" && now ? html`<span class=${old}>${short(now.parked)}</span>` : ""}</a>
      ${key === "messages" && now?.dead ? html`<a class="under" href=${link("messages", { state: "dead" })}>Dead letters <span class=${`${old} warn`}>${short(now.dead)}</span></a>` : ""}</li>`,
    )}</ul>
    ${may && html`<a class="button" href=${link("send")}>Send a message</a>`}
  </nav>`;
}

function Live() {
  const poll = statusPoll.use();
  const age = useAge(poll);
  const why = paused();
  const since = age ? ` for ${span(age)}` : "";
  const words = poll.error
    ? `no ${poll.error.status ? "figures" : "answer"}${since}`
    : why
      ? `paused: ${why}`
      : age
        ? `no answer${since}`
        : poll.data
          ? "live"
          : "connecting";
  return html`<span class=${words === "live" ? "live" : poll.error ? "live bad" : "live off"} title="The status refreshes every second, lists every 2 seconds"><i aria-hidden="true"></i>${words}</span>`;
}

function Foot() {
  const now = useSeconds();
  const chosen = zone.use();
  const look = theme.use();
  const seen = status.use();
  const age = useAge(statusPoll.use());
  return html`<footer class="foot">
    <${Live} />
    <span>server clock <time>${age ? "–" : clock(now)}</time></span>
    <button type="button" class="small" onClick=${() => zone.set(chosen === "utc" ? "local" : "utc")} aria-label=${`Times in ${zoneName(now)}. Change the zone`}>${chosen === "utc" ? "UTC" : zoneName(now)}</button>
    <button type="button" class="small" onClick=${() => theme.set(THEMES[look])} aria-label=${`Colours: ${look}. Change to ${THEMES[look]}`}>${look}</button>
    <button type="button" class="small" onClick=${showHelp} aria-label="Keyboard help">?</button>
    ${seen && html`<span>${seen.role}</span><span>postdate ${seen.version}</span>`}
  </footer>`;
}

function SearchBox() {
  const { path, query } = address.use();
  const [text, setText] = useState("");
  useEffect(() => setText(path[0] === "search" ? (query.q ?? "") : ""), [path[0], query.q]);
  const find = (event) => {
    event.preventDefault();
    if (text.trim()) go("search", { q: text.trim() });
  };
  return html`<form class="search" role="search" aria-label="Where is my message?" onSubmit=${find}>
    <input id="search" type="search" value=${text} onInput=${(e) => setText(e.target.value)} placeholder="Where is my message? Id or key" aria-label="Where is my message? Id or key" spellcheck=${false} autocomplete="off" />
  </form>`;
}

function TokenDialog({ why }) {
  const [text, setText] = useState("");
  const enter = (event) => {
    event.preventDefault();
    asksToken.set("");
    token.set(text.trim());
  };
  return html`<${Dialog} title="Token" onClose=${() => asksToken.set("")}>
    <form onSubmit=${enter}>
      <p>${why}</p>
      <${Field} label="Token" hint="kept until this tab is closed"><input type="password" required autofocus value=${text} autocomplete="off" onInput=${(e) => setText(e.target.value)} /></${Field}>
      <div class="buttons"><button type="submit" class="primary">Enter</button></div>
    </form></${Dialog}>`;
}

const KEYS = [
  ["/", "filter the list, or search"],
  ["j k", "next and previous row"],
  ["x", "select the row"],
  ["Enter", "open the row"],
  ...Object.values(VERBS).map(({ key, name }) => [key, `${name}: the selection, the row, or the shown message`]),
  ["Esc", "close the dialog, clear the selection"],
  ["?", "this help"],
];

const Help = () =>
  html`<${Dialog} title="Keyboard"><dl class="keys">${KEYS.map(([key, text]) => html`<div key=${key}><dt>${key.split(" ").map((one) => html`<kbd>${one}</kbd> `)}</dt><dd>${text}</dd></div>`)}</dl></${Dialog}>`;

const showHelp = () => dialog.set(html`<${Help} />`);

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || dialog.get() || asksToken.get()) return;
  const typing = event.target.closest("input:not([type=checkbox]), textarea, select");
  if (event.key === "Escape") {
    if (typing) typing.blur();
    else document.querySelector(".toolbar button:not([disabled])[data-clear]")?.click();
    return;
  }
  if (typing) return;
  const used = {
    "/": () => (document.querySelector("#filter-first") ?? document.querySelector("#search")).focus(),
    ...Object.fromEntries(Object.values(VERBS).map(({ key }) => [key, () => verbKey(key)])),
    "?": showHelp,
    j: () => rowKey("j"),
    k: () => rowKey("k"),
    x: () => rowKey("x"),
  }[event.key];
  if (used && used() !== false) event.preventDefault();
}

function Toast() {
  const now = toast.use();
  useEffect(() => {
    if (!now) return undefined;
    const timer = setTimeout(() => toast.set(null), 6000);
    return () => clearTimeout(timer);
  }, [now]);
  return html`<div class=${`toast ${now ? "shown" : ""} ${now?.bad ? "bad" : ""}`} role="status" aria-live="polite">${now?.text}
    ${now?.undo && html` <button type="button" class="small" onClick=${now.undo}>Undo</button>`}</div>`;
}

function App() {
  const { path } = address.use();
  const poll = usePoll("status", { routes: true }, STATUS_MS);
  const { data, error } = poll;
  const [open, setOpen] = useState(false);
  const ask = asksToken.use();
  const asked = dialog.use();
  theme.use();
  paint();
  const entered = token.use();
  useEffect(() => {
    // While the store is away, the answer is an error with the verdict and the role, and without numbers.
    if (error?.more.role) status.set({ ...status.get(), ...error.more });
    else if (data && !error) status.set(data);
    statusPoll.set({ ...poll, data: status.get() });
  }, [data, error, poll.at]);
  useEffect(() => {
    setOpen(false);
    const name = path[0] === "messages" && path[1] ? path[1] : (NAV.find(([key]) => key === path[0])?.[1] ?? path[0]);
    document.title = `${name} · postdate`;
  }, [path.join("/")]);
  const Screen = path[0] === "messages" && path[1] ? Message : SCREENS[path[0]];
  return html`<a class="skip" href="#main" onClick=${(e) => {
    e.preventDefault();
    document.querySelector("main").focus();
  }}>Skip to content</a>
    <header class="side">
      <a class="brand" href=${link("")}><img src="page/mark.svg" alt="" width="26" height="26" />postdate</a>
      <button type="button" class="menu" aria-expanded=${String(open)} aria-controls="nav" onClick=${() => setOpen(!open)}>Menu</button>
      <${Nav} open=${open} />
    </header>
    <div class="page">
      <div class="top"><${SearchBox} /></div>
      <main id="main" tabindex="-1">
        ${error && error.status !== 401 && path[0] !== "" && html`<${Trouble} error=${error} />`}
        ${Screen ? html`<${Screen} key=${`${path[0]}/${path[1] ?? ""}/${entered ? 1 : 0}`} />` : html`<h1>No such screen</h1><${Empty}><a href=${link("")}>Back to the overview</a></${Empty}>`}
      </main>
      <${Foot} />
    </div>
    ${asked}
    ${ask && html`<${TokenDialog} why=${ask} />`}
    <${Toast} />`;
}

document.addEventListener("keydown", onKey);
render(html`<${App} />`, document.getElementById("app"));
