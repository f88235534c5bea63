// The overview: is all well, what was delivered, what is due, and the state of each route.
import { html, useContext } from "./vendor/htm-preact.js";
import { usePoll } from "./api.js";
import {
  Choice,
  Command,
  Empty,
  InstanceBadge,
  LiveBadge,
  Next,
  Old,
  Panel,
  SIGN_IN,
  Table,
  Trouble,
  Unknown,
  When,
} from "./parts.js";
import { address, go, link, paused, status, statusPoll, useAge, useSeconds } from "./state.js";
import { lateOf, RATES, RouteState, RouteVerbs } from "./routes.js";
import { Timeline } from "./timeline.js";
import { bytes, count, fine, rate, short, span } from "./words.js";

const SPANS = ["1h", "6h", "24h", "7d"].map((key) => [key, key]);

/** A figure. An old one has its age in place of the note, and no colour. */
function Tile({ name, value, note, tone = "", to, title }) {
  const age = useContext(Old);
  return html`<a class=${`tile ${age ? "old" : tone}`} href=${to} title=${title}>
    <span class="tile-name">${name}</span><strong>${value}</strong><span class="tile-note">${age ? `${span(age)} ago` : note}</span>
  </a>`;
}

/** A server that has not answered for so long is in trouble, and no longer slow. */
const HANGS_MS = 6000;

const TONES = { OK: "good", WARN: "warn" };

/** The verdict of the server, or that there is none: its sentence and its colour. Old figures are never green. */
export function sentenceOf(now, { error }, age, why) {
  if (error?.status === 401) return [SIGN_IN, "wait"];
  if (error && error.more.sentence == null) return [error.message, "bad"];
  if (!age || error) return [now.sentence, TONES[now.level] ?? "bad"];
  if (why) return [`Not known: the page has not refreshed for ${span(age)} (${why}).`, "wait"];
  if (age < 3000) return [`${now.sentence.replace("All well: ", "")} (${span(age)} ago)`, "wait"];
  return age < HANGS_MS
    ? [`Not known: no answer for ${span(age)}.`, "wait"]
    : [`postdate has not answered for ${span(age)}.`, "bad"];
}

/** One sentence on top. */
export function Verdict({ now, poll }) {
  const age = useAge(poll);
  const [sentence, tone] = sentenceOf(now ?? {}, poll, age, paused());
  const ill = /bad|warn/.test(tone);
  // What postdate said before it fell silent may be over.
  const troubles = (ill && (poll.error ? poll.error.more.troubles : !age && now?.troubles)) || [];
  return html`<div class=${`verdict ${tone}`} role="status">
    <p><span class="dot" aria-hidden="true"></span>${sentence}</p>
    ${
      troubles.length > 1 &&
      html`<ul>${troubles.map(
        (fault) =>
          html`<li>${!fault.text.startsWith(fault.subject) && html`<b>${fault.subject}:</b> `}${fault.text}
      ${fault.instance && html`<span class="dim"> (${fault.instance})</span>`}</li>`,
      )}</ul>`
    }
    ${age > 0 && tone === "bad" && html`<p class="dim">The figures below are ${span(age)} old.</p>`}
    ${ill && html`<a href=${link("system", { tab: "doctor" })}>Ask the doctor</a>`}
  </div>`;
}

/** A percentile. Deliveries are counted by class, so above a second the page names the class and no single number. */
function lateness(late, share) {
  const [from, to] = late[`p${share}_class_ms`] ?? [0, 0];
  if (from < 1000) return fine(late[`p${share}_ms`]);
  return to == null ? `over ${span(from)}` : `${span(from)} to ${span(to)}`;
}

function Tiles({ now, poll }) {
  const soon = useSeconds();
  const memory = (now.memory ?? []).reduce((most, one) => (share(one) >= share(most) ? one : most), {
    used: null,
    max: 0,
  });
  const next =
    now.next_due_ms == null
      ? now.parked
        ? "none due"
        : "nothing waits"
      : now.next_due_ms > soon
        ? `next in ${span(now.next_due_ms - soon)}`
        : "next is due now";
  const late = lateOf(now) || 0;
  const held = Math.max(...(now.routes ?? []).map((one) => one.oldest_held_ms ?? 0));
  const took = now.lateness ?? {};
  return html`<${Old.Provider} value=${useAge(poll)}><div class="tiles">
    <${Tile} name="Parked" value=${short(now.parked)} title=${count(now.parked)} to=${link("messages")}
      note=${[now.held ? `held ${short(now.held)}` : next, now.cold ? `cold ${short(now.cold)}` : "", now.parked_bytes == null ? "" : bytes(now.parked_bytes)].filter(Boolean).join(" · ")} />
    <${Tile} name="Due in 5m" value=${short(now.due_5m)} note=${now.delivered_per_s == null ? "measuring the rate" : `delivering ${rate(now.delivered_per_s)}`} to=${link("messages", { due: "5m" })} />
    <${Tile} name="Overdue" value=${short(late)} tone=${late ? "bad" : ""} to=${link("messages", { due: "overdue" })}
      note=${late ? `oldest ${span(now.oldest_overdue_ms)}${now.refused ? ` · refused ${short(now.refused)}` : ""}` : now.held ? `held ${short(now.held)}${held ? ` · oldest ${span(held)}` : ""}` : "nothing is late"} />
    <${Tile} name="Lateness p99" value=${lateness(took, 99)} to=${link("messages", { state: "history" })}
      note=${took.p50_ms == null ? "no deliveries yet" : `p50 ${lateness(took, 50)} · ${span(took.window_s * 1000)}`} />
    <${Tile} name="Dead letters" value=${short(now.dead)} tone=${now.dead ? "warn" : ""} to=${link("messages", { state: "dead" })}
      note=${now.dead ? "look at the reasons" : "none"} />
    <${Tile} name="Store memory" value=${memory.max ? `${Math.round(share(memory) * 100)}%` : bytes(memory.used)} to=${link("system")}
      tone=${share(memory) > 0.85 ? "bad" : ""} note=${memory.max ? `${bytes(memory.used)} of ${bytes(memory.max)}` : "no limit set"} />
  </div></${Old.Provider}>`;
}

const share = (one) => (one.max ? one.used / one.max : 0);

export function RoutesTable({ routes }) {
  return html`<${Table} label="Routes" kind="routes" columns=${[
    ["Route"],
    ["State"],
    ["In", "num", RATES],
    ["Out", "num", RATES],
    ["Parked", "num"],
    ["Dead", "num"],
    ["Next due"],
    ["Actions", "acts"],
  ]}>
    ${routes.map(
      (one) =>
        html`<tr key=${one.name}>
      <th scope="row"><a href=${link("messages", { route: one.name })}>${one.name}</a>
        <span class="sub">${one.intercept} → ${[].concat(one.deliver_to).join(", ")}</span></th>
      <td><${RouteState} route=${one} /></td>
      <td class="num">${rate(one.received_per_s)}</td><td class="num">${rate(one.delivered_per_s)}</td>
      <td class="num">${count(one.parked)}${one.held ? html`<span class="sub">held ${count(one.held)}</span>` : ""}${one.max_rate && html`<span class="sub">max_rate ${one.max_rate}/s</span>`}</td>
      <td class="num">${one.dead ? html`<a class="warn" href=${link("messages", { state: "dead", route: one.name })}>${count(one.dead)}</a>` : count(one.dead)}</td>
      <td>${lateOf(one) ? html`<span class="bad">overdue ${span(one.oldest_overdue_ms)}</span>` : html`<${Next} ms=${one.next_due_ms} />`}</td>
      <td class="acts"><${RouteVerbs} route=${one} /></td>
    </tr>`,
    )}
  </${Table}>`;
}

const UNKNOWN_TILES = ["Parked", "Due in 5m", "Overdue", "Lateness p99", "Dead letters", "Store memory"];

/** While the store is away nothing is known of a canary, though earlier ones arrived. */
const canaryIs = ({ ok, last_success_ms }) =>
  ok == null ? (last_success_ms ? "unknown" : "first is under way") : ok ? "arrives" : "missing";

function Canary({ list, error }) {
  if (list === null) return html`<p class="dim">Not known: no instance runs beside this page.</p>`;
  if (!list) return html`<${Unknown} error=${error} why="postdate has not answered" />`;
  if (!list.length) return html`<${Empty}>The canary is off: [canary] enabled.</${Empty}>`;
  return html`<ul class="plain">${list.map(
    (one) =>
      html`<li key=${one.broker}>
    <${LiveBadge} is=${one.ok == null ? "unknown" : one.ok ? "ok" : "fail"}>${canaryIs(one)}</${LiveBadge}>
    <b>${one.broker}</b><span class="dim">${fine(one.lateness_ms)} late, <${When} ms=${one.last_success_ms} /></span></li>`,
  )}</ul>`;
}

function Instances({ list }) {
  return html`<ul class="plain">${(list ?? []).map(
    (one) =>
      html`<li key=${one.name}>
      <${InstanceBadge} state=${one.state} /> <b title=${one.name}>${one.name}</b>${one.shards != null && html`<span class="dim">shards: ${one.shards}</span>`}</li>`,
  )}</ul>
    ${list && !list.length && html`<${Empty} command="postdate run">No instance runs.</${Empty}>`}`;
}

export function Overview() {
  const now = status.use();
  const poll = statusPoll.use();
  const { query } = address.use();
  const chosen = SPANS.some(([key]) => key === query.span) ? query.span : "1h";
  const line = usePoll("timeline", { span: chosen }, 4000);
  const routes = now?.routes;
  return html`<h1 class="hidden">Overview</h1>
    <div class="lead">
      ${now || poll.error ? html`<${Verdict} now=${now} poll=${poll} />` : html`<div class="verdict wait"></div>`}
      ${now?.parked != null ? html`<${Tiles} now=${now} poll=${poll} />` : html`<div class="tiles">${UNKNOWN_TILES.map((name) => html`<${Tile} key=${name} name=${name} value="–" note=${poll.error ? "not known" : ""} />`)}</div>`}
    </div>
    <${Panel} title="Timeline" kind="wide" of=${line} tools=${html`<${Choice} label="Span" options=${SPANS} value=${chosen} onChange=${(span) => go("", { span })} />`}>
      <${Trouble} error=${!poll.error && line.error} />
      ${line.data ? html`<${Timeline} data=${line.data} name=${chosen} late=${now && lateOf(now)} />` : line.error ? html`<${Unknown} error=${line.error} />` : html`<div class="timeline wait"></div>`}
    </${Panel}>
    <div class="columns">
      <${Panel} title="Routes" of=${poll}>
        ${!routes && poll.error && html`<${Unknown} error=${poll.error} />`}
        ${
          routes &&
          (routes.length
            ? html`<${RoutesTable} routes=${routes} />`
            : html`<${Empty} command="postdate check">The settings name no route.</${Empty}>`)
        }
      </${Panel}>
      <div class="stack">
        <${Panel} title="Canary" of=${poll.error?.more.canary ? undefined : poll}><${Canary} list=${now?.canary} error=${poll.error} /></${Panel}>
        <${Panel} title="Instances" of=${poll.error?.more.instance_states ? undefined : poll} tools=${html`<a href=${link("instances")}>Details</a>`}><${Instances} list=${now?.instance_states} /></${Panel}>
      </div>
    </div>
    ${
      now &&
      now.parked === 0 &&
      !now.dead &&
      !poll.error &&
      html`<${Panel} title="Nothing waits yet">
      <p class="dim">Send a message with a delay, then look at the timeline.</p>
      <${Command} text=${`postdate send ${routes?.[0]?.name ?? "ROUTE"} 'hello' --in 1m`} />
    </${Panel}>`
    }`;
}
