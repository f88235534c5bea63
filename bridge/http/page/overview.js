// The overview: is all well, what was delivered, what is due, and the state of each route.
import { html } from "./vendor/htm-preact.js";
import { usePoll } from "./api.js";
import { Badge, Choice, Command, Empty, Panel, Table, Trouble, When } from "./parts.js";
import { address, go, link, status, useSeconds } from "./state.js";
import { RouteVerbs } from "./routes.js";
import { Timeline } from "./timeline.js";
import { bytes, count, fine, rate, short, span } from "./words.js";

/** A message that is due this moment counts as overdue until it is claimed: no reason for red. */
const LATE_MS = 1000;
const SPANS = [["1h", "1 h"], ["6h", "6 h"], ["24h", "24 h"], ["7d", "7 d"]];

const Tile = ({ name, value, note, tone = "", to, title }) => html`<a class=${`tile ${tone}`} href=${to} title=${title}>
  <span class="tile-name">${name}</span><strong>${value}</strong><span class="tile-note">${note}</span>
</a>`;

/** One sentence on top: green or red. */
export function Verdict({ now }) {
  const troubles = now.troubles ?? [];
  return html`<div class=${`verdict ${now.well ? "good" : "bad"}`} role="status">
    <p><span class="dot" aria-hidden="true"></span>${now.sentence}</p>
    ${troubles.length > 0 && html`<ul>${troubles.map((one) => html`<li><b>${one.subject}</b> ${one.text}
      ${one.instance && html`<span class="dim"> (${one.instance})</span>`}</li>`)}</ul>`}
    ${!now.well && html`<a href=${link("system", { tab: "doctor" })}>Ask the doctor</a>`}
  </div>`;
}

function Tiles({ now }) {
  const soon = useSeconds();
  const memory = (now.memory ?? []).reduce((most, one) => (share(one) >= share(most) ? one : most), { used: null, max: 0 });
  const next = now.next_due_ms == null ? "nothing waits" : now.next_due_ms > soon ? `next in ${span(now.next_due_ms - soon)}` : "next is due now";
  const late = now.lateness ?? {};
  const window = late.window_s ? `${span(late.window_s * 1000)}` : "";
  return html`<div class="tiles">
    <${Tile} name="Parked" value=${short(now.parked)} title=${count(now.parked)} to=${link("messages")}
      note=${[now.held ? `held ${short(now.held)}` : next, now.parked_bytes == null ? "" : bytes(now.parked_bytes)].filter(Boolean).join(" · ")} />
    <${Tile} name="Due in 5 min" value=${short(now.due_5m)} note=${`delivering ${rate(now.delivered_per_s)}`} to=${link("messages", { due: "5m" })} />
    <${Tile} name="Overdue" value=${short(now.overdue)} tone=${now.oldest_overdue_ms > LATE_MS ? "bad" : ""} to=${link("messages", { due: "overdue" })}
      note=${now.overdue ? `oldest ${span(now.oldest_overdue_ms)}` : "nothing is late"} />
    <${Tile} name="Lateness p99" value=${fine(late.p99_ms)} to=${link("messages", { state: "history" })}
      note=${late.p50_ms == null ? "no deliveries yet" : `p50 ${fine(late.p50_ms)} · ${window}`} />
    <${Tile} name="Dead letters" value=${short(now.dead)} tone=${now.dead ? "warn" : ""} to=${link("messages", { state: "dead" })}
      note=${now.dead ? "look at the reasons" : "none"} />
    <${Tile} name="Store memory" value=${memory.max ? `${Math.round(share(memory) * 100)}%` : bytes(memory.used)} to=${link("system")}
      tone=${share(memory) > 0.85 ? "bad" : ""} note=${memory.max ? `${bytes(memory.used)} of ${bytes(memory.max)}` : "no limit set"} />
  </div>`;
}

const share = (one) => (one.max ? one.used / one.max : 0);

export function RoutesTable({ routes }) {
  return html`<${Table} label="Routes" kind="routes" columns=${[["Route"], ["State"], ["In", "num"], ["Out", "num"], ["Parked", "num"],
    ["Dead", "num"], ["Next due"], ["Actions", "acts"]]}>
    ${routes.map((one) => html`<tr key=${one.name}>
      <th scope="row"><a href=${link("messages", { route: one.name })}>${one.name}</a>
        <span class="sub">${one.intercept} → ${[].concat(one.deliver_to).join(", ")}</span></th>
      <td><${Badge} is=${one.state} /></td>
      <td class="num">${rate(one.received_per_s)}</td><td class="num">${rate(one.delivered_per_s)}</td>
      <td class="num">${count(one.parked)}${one.held ? html`<span class="sub">held ${count(one.held)}</span>` : ""}</td>
      <td class="num">${one.dead ? html`<a class="bad" href=${link("messages", { state: "dead", route: one.name })}>${count(one.dead)}</a>` : count(one.dead)}</td>
      <td>${one.overdue && one.oldest_overdue_ms > LATE_MS ? html`<span class="bad">overdue ${span(one.oldest_overdue_ms)}</span>` : html`<${When} ms=${one.next_due_ms} />`}</td>
      <td class="acts"><${RouteVerbs} route=${one} /></td>
    </tr>`)}
  </${Table}>`;
}

function Canary({ list }) {
  if (!list?.length) return html`<${Empty}>The canary is off: [canary] enabled.</${Empty}>`;
  return html`<ul class="plain">${list.map((one) => html`<li key=${one.broker}>
    <${Badge} is=${one.ok ? "ok" : "fail"}>${one.ok ? "arrives" : "missing"}</${Badge}>
    <b>${one.broker}</b><span class="dim">${fine(one.lateness_ms)} late, <${When} ms=${one.last_success_ms} /></span></li>`)}</ul>`;
}

function Instances() {
  const { data, error } = usePoll("instances", {}, 5000);
  const list = data?.instances ?? (Array.isArray(data) ? data : []);
  return html`<${Trouble} error=${error} />
    <ul class="plain">${list.map((one) => html`<li key=${one.name}>
      <${Badge} is=${one.health && one.health !== "All well." ? "fail" : "ok"}>${one.health && one.health !== "All well." ? "trouble" : "well"}</${Badge}>
      <b title=${one.name}>${one.name}</b><span class="dim">${one.shards?.length ?? 0} shards</span></li>`)}</ul>
    ${data && !list.length && html`<${Empty} command="postdate run">No instance runs.</${Empty}>`}`;
}

export function Overview() {
  const now = status.use();
  const { query } = address.use();
  const chosen = SPANS.some(([key]) => key === query.span) ? query.span : "1h";
  const line = usePoll("timeline", { span: chosen }, 4000);
  const routes = usePoll("routes");
  const name = SPANS.find(([key]) => key === chosen)[1];
  return html`<h1 class="hidden">Overview</h1>
    <div class="lead">
      ${now ? html`<${Verdict} now=${now} />` : html`<div class="verdict wait"></div>`}
      ${now ? html`<${Tiles} now=${now} />` : html`<div class="tiles">${[1, 2, 3, 4, 5, 6].map((n) => html`<div class="tile" key=${n}></div>`)}</div>`}
    </div>
    <${Panel} title="Timeline" kind="wide" tools=${html`<${Choice} label="Span" options=${SPANS} value=${chosen} onChange=${(span) => go("", { span })} />`}>
      <${Trouble} error=${line.error} />
      ${line.data ? html`<${Timeline} data=${line.data} name=${name} />` : html`<div class="timeline wait"></div>`}
    </${Panel}>
    <div class="columns">
      <${Panel} title="Routes">
        <${Trouble} error=${routes.error} />
        ${routes.data && (routes.data.routes.length ? html`<${RoutesTable} routes=${routes.data.routes} />`
          : html`<${Empty} command="postdate check">The settings name no route.</${Empty}>`)}
      </${Panel}>
      <div class="stack">
        <${Panel} title="Canary"><${Canary} list=${now?.canary} /></${Panel}>
        <${Panel} title="Instances" tools=${html`<a href=${link("instances")}>Details</a>`}><${Instances} /></${Panel}>
      </div>
    </div>
    ${now && now.parked === 0 && !now.dead && html`<${Panel} title="Nothing waits yet">
      <p class="dim">Send a message with a delay, then look at the timeline.</p>
      <${Command} text=${`postdate send ${routes.data?.routes[0]?.name ?? "ROUTE"} 'hello' --in 1m`} />
    </${Panel}>`}`;
}
