// One message: facts, life line, headers, body, verbs, and the same as commands.
import { html, useState } from "./vendor/htm-preact.js";
import { asCurl, raw, usePoll } from "./api.js";
import { Badge, Choice, Command, Due, Empty, Facts, Fresh, Panel, Table, Trouble } from "./parts.js";
import { address, link, say, useMay, useRoutes, zone } from "./state.js";
import { askOne, verbsFor, VERBS } from "./verbs.js";
import { asMs, bytes, count, fine, moment, quoted } from "./words.js";

const HEX_MAX = 4096;
const NOT_KEPT = "Not kept after it left the store";
const MOMENTS = { next_try: "Next try", lease_until: "Lease until", died: "Died" };

function LifeLine({ life }) {
  zone.use();
  return html`<ol class="life">${life.map((step, at) => {
    const gap = at ? step.at_ms - life[at - 1].at_ms : null;
    return html`<li key=${step.what} class=${`step ${step.what}`}>
      <span class="gap-text">${gap == null ? "" : `${gap < 0 ? "−" : "+"}${fine(Math.abs(gap))}`}</span>
      <b>${step.what}</b><time title=${moment(step.at_ms, true)}>${moment(step.at_ms, true).slice(11)}</time>
      <span class="dim">${moment(step.at_ms).slice(0, 10)}</span></li>`;
  })}</ol>`;
}

function hexOf(data) {
  const lines = [];
  for (let at = 0; at < Math.min(data.length, HEX_MAX); at += 16) {
    const row = [...data.slice(at, at + 16)];
    const hex = row
      .map((byte) => byte.toString(16).padStart(2, "0"))
      .join(" ")
      .padEnd(47);
    const text = row.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${hex}  ${text}`);
  }
  return lines.join("\n");
}

const bytesOf = (body) =>
  body.text != null
    ? new TextEncoder().encode(body.text)
    : Uint8Array.from(atob(body.base64 ?? ""), (one) => one.charCodeAt(0));

function asJson(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return null;
  }
}

async function download(id) {
  try {
    const file = new Blob([await raw(`messages/${encodeURIComponent(id)}/body`)]);
    const anchor = Object.assign(document.createElement("a"), {
      href: URL.createObjectURL(file),
      download: `${id}.bin`,
    });
    anchor.click();
    setTimeout(() => URL.revokeObjectURL(anchor.href), 10000);
  } catch (problem) {
    say(problem.message, true);
  }
}

function Body({ body, id }) {
  const pretty = body.text == null ? null : asJson(body.text);
  const ways = [
    ["text", "Text"],
    ["json", "JSON"],
    ["hex", "Hex"],
  ].filter(([way]) => (way === "text" ? body.text != null : way === "json" ? pretty : true));
  const [way, setWay] = useState(null);
  const active = ways.some(([key]) => key === way) ? way : pretty ? "json" : ways[0][0];
  const isHidden = body.hidden || (body.text == null && body.base64 == null);
  const tools =
    !isHidden &&
    html`<${Choice} label="Show the body as" options=${ways} value=${active} onChange=${setWay} />
    <button type="button" class="small" onClick=${() => download(id)}>Download</button>`;
  const text = isHidden ? "" : active === "hex" ? hexOf(bytesOf(body)) : active === "json" ? pretty : body.text;
  return html`<${Panel} title=${`Body, ${bytes(body.size)}`} tools=${tools}>
    ${body.hidden && html`<p class="note">${body.hidden}</p>`}
    ${!body.hidden && isHidden && html`<p class="note">The body is gone: postdate keeps no body of a message that left.</p>`}
    ${!isHidden && (body.size === 0 ? html`<p class="dim">It is empty.</p>` : html`<pre tabindex="0" aria-label="Body">${text}</pre>`)}
    ${body.truncated && html`<p class="dim">Only the first bytes are shown. Download has all of it.</p>`}
  </${Panel}>`;
}

const shownValue = (value) => (typeof value === "string" ? value : JSON.stringify(value));

const Pairs = ({ of, label }) => {
  const pairs = Object.entries(of ?? {}).filter(([, value]) => value != null);
  if (!pairs.length) return html`<p class="dim">None.</p>`;
  return html`<${Table} label=${label} kind="pairs" columns=${[["Name"], ["Value"]]}>
    ${pairs.map(([name, value]) => html`<tr key=${name}><th scope="row"><code>${name}</code></th><td><code class="wrap">${shownValue(value)}</code></td></tr>`)}
  </${Table}>`;
};

function lifeOf(data, message) {
  if (data.life?.length) return data.life;
  return [
    ["received", message.arrived_ms],
    ["due", message.due_ms],
  ]
    .filter(([, at]) => at)
    .map(([what, at_ms]) => ({ what, at_ms }));
}

export function Message() {
  const { path } = address.use();
  const id = path[1];
  const at = `messages/${encodeURIComponent(id)}`;
  const poll = usePoll(at);
  const { data, error } = poll;
  const may = useMay("operator");
  if (error && !data) {
    return html`<h1>Message <code>${id}</code></h1>${
      error.status === 404
        ? html`<${Empty} command=${`postdate show ${id}`}>${error.message}</${Empty}>`
        : html`<${Trouble} error=${error} />`
    }`;
  }
  if (!data) return html`<h1>Message <code>${id}</code></h1><div class="panel wait"></div>`;
  const message = data.message;
  const commands = Object.entries({ show: `postdate show ${id}`, ...data.commands });
  return html`<nav class="crumbs" aria-label="Breadcrumb"><a href=${link("messages", { state: message.state === "dead" ? "dead" : "" })}>Messages</a></nav>
    <div class="title"><h1>${message.key || html`<code>${message.id}</code>`}</h1>
      <${Badge} is=${message.held ? "held" : message.state} /> <${Due} message=${message} at=${data.now_ms} />
      <span class="gap"></span>
      <div class="tools">${
        may &&
        verbsFor(message.state).map(
          (verb) =>
            html`<button type="button" key=${verb} class=${VERBS[verb].danger ? "danger" : ""}
        data-key=${VERBS[verb].key} onClick=${() => askOne(verb, { ...message, seen_ms: data.now_ms })}>${VERBS[verb].name} …</button>`,
        )
      }</div></div>
    <${Fresh} poll=${poll} />
    ${message.reason && html`<p class="note bad-note"><b>Reason:</b> ${message.reason}</p>`}
    <${Panel} title="Life line"><${LifeLine} life=${lifeOf(data, message)} /></${Panel}>
    <div class="columns even">
      <${Panel} title="Facts"><${Facts} of=${[
        ["Id", html`<code>${message.id}</code>`],
        ["Key", message.key && html`<code>${message.key}</code>`],
        ["Route", message.route && html`<a href=${link("messages", { route: message.route })}>${message.route}</a>`],
        ["Broker", message.broker],
        [message.broker === "kafka" ? "Record key" : "Routing key", data.headers ? null : NOT_KEPT],
        ["Routing key", message.routing_key && html`<code>${message.routing_key}</code>`],
        ["Topic", message.topic && html`<code>${message.topic}</code>`],
        ["Partition", message.partition],
        ["Record key", message.record_key && html`<code>${message.record_key}</code>`],
        ["Due", moment(message.due_ms, true)],
        ["Received", message.arrived_ms ? moment(message.arrived_ms, true) : null],
        ...["next_try", "lease_until", "died"].map((name) => [
          MOMENTS[name],
          message[name] && moment(asMs(message[name]), true),
        ]),
        ["Size", bytes(message.size)],
        ["Tries", count(message.tries ?? 0)],
        [
          "First copy",
          message.first_copy && html`<a href=${link(`messages/${message.first_copy}`)}>${message.first_copy}</a>`,
        ],
      ]} /></${Panel}>
      <${Panel} title="Headers">${
        !data.headers ? html`<p class="dim">${NOT_KEPT}.</p>` : html`<${Pairs} of=${data.headers} label="Headers" />`
      }
        ${Object.keys(data.properties ?? {}).length > 0 && html`<h3>Properties</h3><${Pairs} of=${data.properties} label="Properties" />`}</${Panel}>
    </div>
    ${data.body && html`<${Body} body=${data.body} id=${message.id} />`}
    <${Panel} title="As a command">
      ${commands.map(([name, text]) => html`<${Command} key=${name} name=${name} text=${text} />`)}
      <${Command} name="API" text=${asCurl("GET", at)} />
    </${Panel}>`;
}

/** The command that looks for the same: an id has 20 digits and letters, all else is a key of a route. */
export function showCommand(text, routes) {
  if (/^[0-9a-v]{20}$/.test(text)) return `postdate show ${text}`;
  return `postdate show --key ${quoted(text)} --route ${routes.length === 1 ? quoted(routes[0]) : "ROUTE"}`;
}

/** Where is my message? */
export function Search() {
  const { query } = address.use();
  const { data, error } = usePoll(query.q ? "search" : null, { q: query.q });
  const found = data?.found ?? [];
  const routes = useRoutes()?.map((route) => route.name) ?? [];
  return html`<h1>Where is my message?</h1>
    <${Trouble} error=${error} />
    ${!query.q && html`<${Empty} command="postdate show --key KEY --route ROUTE">Give an id or a producer's key in the box above.</${Empty}>`}
    ${
      data &&
      !found.length &&
      html`<${Empty} command=${showCommand(query.q, routes)}>
      “${query.q}” is ${data.text || "not seen in the last 24 h"}. Parked, claimed and dead messages and the history were searched.</${Empty}>`
    }
    ${
      found.length > 0 &&
      html`<ul class="found">${found.map(
        (one) =>
          html`<li key=${one.id + one.state} class="panel">
      <a class="open" href=${link(`messages/${one.id}`)}>${one.key || one.id}</a> <${Badge} is=${one.held ? "held" : one.state} />
      <span>route <b>${one.route}</b></span> <${Due} message=${one} at=${data.now_ms} />
      <code class="dim">${one.id}</code></li>`,
      )}</ul>
      ${data.text && html`<p class="dim">${data.text}</p>`}`
    }`;
}
