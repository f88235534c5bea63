// Levels, instances, and the system: operations, settings, doctor, audit log.
import { html, useState } from "./vendor/htm-preact.js";
import { call, usePoll } from "./api.js";
import { askRestore } from "./restore.js";
import { Badge, Command, Empty, Facts, Fresh, InstanceBadge, Panel, Table, Trouble, When } from "./parts.js";
import { address, changed, link, say, status, statusPoll, theme, token, useMay, zone } from "./state.js";
import { bytes, count, fine } from "./words.js";

const listOf = (data, name) => data?.[name] ?? [];

// -- levels

export function Levels() {
  const poll = usePoll("levels", {}, 5000);
  const { data } = poll;
  const list = listOf(data, "levels");
  const routes = [...new Set(list.map((one) => one.route))];
  return html`<h1>Levels</h1>
    <p class="dim">Queues and topics in which messages of routes without a store wait.</p>
    <${Fresh} poll=${poll} />
    ${listOf(data, "warnings").map((text) => html`<p class="note" key=${text}>${text}</p>`)}
    ${data && !list.length && html`<${Empty} command="postdate levels stats">Every route has a store. Levels belong to mode levels and ladder.</${Empty}>`}
    ${routes.map((route) => html`<${RouteLevels} key=${route} route=${route} list=${list.filter((one) => one.route === route)} />`)}`;
}

function RouteLevels({ route, list }) {
  const most = Math.max(1, ...list.map((one) => one.messages ?? 0));
  return html`<${Panel} title=${route || "unknown route"}>
    <${Table} label=${`Levels of ${route}`} kind="levels" columns=${[["Name"], ["Kind"], ["Messages", "num"], ["Share", "bar"], ["State"]]}>
      ${list.map(
        (one) =>
          html`<tr key=${one.name}><th scope="row"><code>${one.name}</code></th><td>${one.kind}</td>
        <td class="num">${count(one.messages)}</td><td class="bar"><meter min="0" max=${most} value=${one.messages ?? 0} aria-label=${`Messages in ${one.name}`}></meter></td>
        <td>${one.state}${one.text && html`<span class="sub">${one.text}</span>`}</td></tr>`,
      )}
    </${Table}>
  </${Panel}>`;
}

// -- instances

const shown = (value) => (value == null ? null : typeof value === "object" ? JSON.stringify(value) : String(value));

/** What an instance reports of its routes, as rows: what it received and delivered, and what is held or full there. */
function routeRows(one) {
  const names = new Set(
    [...(one.routes ?? []), ...Object.keys(one.by_route ?? {})].filter((name) => !name.startsWith("postdate_canary")),
  );
  return [...names].map((name) => ({ name, ...one.by_route?.[name], full: one.full?.includes(name) }));
}

export function Instances() {
  const poll = usePoll("instances");
  const { data, error } = poll;
  const list = listOf(data, "instances");
  return html`<h1>Instances</h1>
    <${Trouble} error=${error} />
    ${data && !list.length && html`<${Empty} command="postdate run">No instance runs. Nothing is delivered until one does.</${Empty}>`}
    <div class="cards">${list.map((one) => html`<${Instance} key=${one.name} one=${one} poll=${poll} />`)}</div>`;
}

function Instance({ one, poll }) {
  const late = Object.entries(one.lateness_ms ?? {}).filter(([, ms]) => typeof ms === "number");
  const rows = routeRows(one);
  return html`<${Panel} title=${one.name} of=${poll} tools=${html`<${InstanceBadge} state=${one.state} />`}>
    ${one.text && html`<p class=${one.state === "warning" ? "note" : "note bad-note"}>${one.text}</p>`}
    <${Facts} of=${[
      ["Shards", one.shards && (one.shards.join(", ") || "none")],
      ["Lateness", late.map(([name, ms]) => `${name} ${fine(ms)}`).join(" · ")],
      ["Received", one.received != null && count(one.received)],
      ["Delivered", one.delivered != null && count(one.delivered)],
      ["Claimed now", one.claimed != null && count(one.claimed)],
      ["Overdue", one.overdue_s != null && (one.overdue_s ? fine(one.overdue_s * 1000) : "none")],
      ["Can deliver", one.able == null ? null : one.able ? "yes" : "no"],
    ]} />
    ${
      rows.length > 0 &&
      html`<${Table} label=${`Routes of ${one.name}`} columns=${[["Route"], ["Received", "num"], ["Delivered", "num"]]}>
      ${rows.map((row) => html`<tr key=${row.name}><th scope="row">${row.name}${row.full ? html`<span class="sub">full</span>` : ""}</th><td class="num">${count(row.received)}</td><td class="num">${count(row.delivered)}</td></tr>`)}
    </${Table}>`
    }
  </${Panel}>`;
}

// -- system

const TABS = [
  ["", "Operations"],
  ["audit", "Audit log"],
  ["doctor", "Doctor"],
  ["settings", "Settings"],
  ["about", "About"],
];

export function System() {
  const { query } = address.use();
  const tab = query.tab ?? "";
  const Part = { audit: Audit, doctor: Doctor, settings: Settings, about: About }[tab] ?? Operations;
  return html`<h1>System</h1>
    <nav class="tabs" aria-label="Part">${TABS.map(([key, name]) => html`<a key=${key} href=${link("system", { tab: key })} aria-current=${key === tab ? "page" : undefined}>${name}</a>`)}</nav>
    <${Part} />`;
}

function Operations() {
  const poll = usePoll("operations", {}, 1000);
  const { data } = poll;
  const may = useMay("operator");
  const list = listOf(data, "operations");
  const stop = (id) =>
    call("DELETE", `operations/${encodeURIComponent(id)}`, {}).then(changed, (problem) => say(problem.message, true));
  return html`<${Fresh} poll=${poll} />
    ${may && status.use()?.journal && html`<div class="buttons"><button type="button" onClick=${askRestore}>Restore …</button> <span class="dim">from the journal</span></div>`}
    ${data && !list.length && html`<${Empty}>No bulk operation yet. Start one in Messages: select messages, then a verb.</${Empty}>`}
    ${
      list.length > 0 &&
      html`<${Panel} title="Bulk operations"><${Table} label="Operations" columns=${[["Verb"], ["State"], ["Progress"], ["Done", "num"], ["Started"], ["By"], ["Reason"], ["Actions", "acts"]]}>
      ${list.map(
        (one) =>
          html`<tr key=${one.id}><th scope="row">${one.verb}</th><td><${Badge} is=${one.state} /></td>
        <td><progress max=${Math.max(1, one.total ?? 1)} value=${one.done + one.skipped} aria-label=${`Progress of ${one.verb}`}></progress></td>
        <td class="num">${count(one.done)}${one.total == null ? "" : ` of ${count(one.total)}`}${one.skipped ? html`<span class="sub">skipped ${count(one.skipped)}</span>` : ""}</td>
        <td><${When} ms=${one.started_ms} /></td><td>${one.by}</td><td>${one.reason}${one.text && html`<span class="sub">${one.text}</span>`}</td>
        <td class="acts">${may && one.state === "running" && html`<button type="button" class="danger small" onClick=${() => stop(one.id)}>Stop</button>`}</td></tr>`,
      )}
    </${Table}></${Panel}>`
    }`;
}

function Audit() {
  const poll = usePoll("audit", {}, 5000);
  const { data } = poll;
  zone.use();
  const list = listOf(data, "audit");
  return html`<${Fresh} poll=${poll} />
    ${data && !list.length && html`<${Empty} command="postdate pause ROUTE --note 'maintenance'">No one has changed anything yet.</${Empty}>`}
    ${
      list.length > 0 &&
      html`<${Panel} title="Who did what"><${Table} label="Audit log" columns=${[["When"], ["Who"], ["Via"], ["Verb"], ["What"], ["Reason"]]}>
      ${list.map(
        (one, at) =>
          html`<tr key=${`${one.at_ms}-${at}`}><td><${When} ms=${one.at_ms} both /></td><td>${one.who}</td><td>${one.via}</td>
        <th scope="row">${one.verb}</th><td class="wrap">${one.what}${one.messages > 1 ? html`<span class="sub">messages: ${count(one.messages)}</span>` : ""}</td><td>${one.reason}</td></tr>`,
      )}
    </${Table}></${Panel}>`
    }`;
}

function Doctor() {
  const [run, setRun] = useState(0);
  // Another fragment asks again. It is not sent.
  const { data, error, stale } = usePoll(`doctor#${run}`, {}, 0);
  const list = listOf(data, "findings");
  return html`<${Panel} title="Doctor" tools=${html`<button type="button" disabled=${stale && !error} onClick=${() => setRun(run + 1)}>Check again</button>`}>
    <${Trouble} error=${error} />
    ${!data && !error && html`<p class="dim">Asks the brokers and the store. This takes some seconds.</p>`}
    <ul class="findings">${list.map(
      (one, at) =>
        html`<li key=${at}><${Badge} is=${one.level.toUpperCase()} />
      <div><b>${one.subject}</b> ${one.text}${one.advice && html`<${Advice} text=${one.advice} />`}</div></li>`,
    )}</ul>
    <p class="dim"><code>deploy/messages.md</code> says what each sentence means, and what to do.</p>
    <${Command} name="Terminal" text="postdate doctor" />
  </${Panel}>`;
}

const Advice = ({ text }) =>
  html`<p class="advice">${text.split("`").map((part, at) => (at % 2 ? html`<code>${part}</code>` : part))}</p>`;

function Settings() {
  const { data, error } = usePoll("config", {}, 0);
  const [text, setText] = useState("");
  const list = listOf(data, "settings").filter((one) => one.name.includes(text.trim()));
  if (error?.status === 403) return html`<${Empty}>Settings need the admin role.</${Empty}>`;
  return html`<${Trouble} error=${error} />
    ${
      data &&
      html`<${Panel} title="Settings" tools=${html`<label class="inline"><span class="hidden">Filter settings</span><input placeholder="filter" value=${text} onInput=${(e) => setText(e.target.value)} /></label>`}>
      <${Table} label="Settings" kind="pairs" columns=${[["Name"], ["Value"], ["Source"]]}>
        ${list.map(
          (one) =>
            html`<tr key=${one.name}><th scope="row"><code>${one.name}</code></th><td>${one.value === "" || one.value == null ? html`<span class="dim">not set</span>` : html`<code class="wrap">${shown(one.value)}</code>`}</td>
          <td class=${one.source === "default" ? "dim" : ""}>${one.source}</td></tr>`,
        )}
      </${Table}><${Command} name="Terminal" text="postdate check" /></${Panel}>`
    }`;
}

function About() {
  const now = status.use();
  const entered = token.use();
  return html`<${Panel} title="About" of=${statusPoll.use()}><${Facts} of=${[
    ["Version", now?.version],
    ["Your role", now?.role],
    ["Bodies", now?.bodies],
    ["Instances", now && count(now.instances)],
    [
      "Memory",
      now &&
        html`<ul class="plain">${(now.memory ?? []).map((one) => html`<li key=${one.server}>${one.server}: ${bytes(one.used)}${one.max ? ` of ${bytes(one.max)}` : ", no limit"}</li>`)}</ul>`,
    ],
    ...Object.entries(now?.ever ?? {}).map(([name, number]) => [`Ever ${name}`, count(number)]),
  ]} />
  <div class="buttons">
    ${["auto", "light", "dark"].map((one) => html`<button type="button" key=${one} aria-pressed=${String(theme.get() === one)} onClick=${() => theme.set(one)}>${one} colours</button>`)}
    ${entered && html`<button type="button" onClick=${() => token.set("")}>Forget the token</button>`}
  </div>
  <${Command} name="Terminal" text="postdate stats" /><p class="dim">The API is described at <a href="openapi.json">openapi.json</a>.</p></${Panel}>`;
}
