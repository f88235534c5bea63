// Routes: what each does, and pause, resume, drain.
import { html, useState } from "./vendor/htm-preact.js";
import { asCurl, call } from "./api.js";
import { Command, Dialog, Empty, Facts, Field, LiveBadge, Next, Panel, Trouble, Unknown, When } from "./parts.js";
import { changed, dialog, link, say, statusPoll, useMay, useRoutes } from "./state.js";
import { count, quoted, rate, span } from "./words.js";

const VERBS = {
  pause: ["Pause", "Its messages are still taken in and parked. Due ones are held until you resume the route."],
  resume: ["Resume", "Held messages that are due are delivered at once."],
  drain: ["Drain", "The route takes nothing more in. What is parked is delivered when it is due."],
};
const POSSIBLE = {
  running: ["pause", "drain"],
  paused: ["resume", "drain"],
  draining: ["resume", "pause"],
  full: ["pause", "drain"],
};

function Order({ route, verb }) {
  const [reason, setReason] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState(null);
  const [name, text] = VERBS[verb];
  const path = `routes/${encodeURIComponent(route.name)}/${verb}`;
  const body = { reason };
  const now = useRoutes().find((one) => one.name === route.name) ?? route;
  const give = async (event) => {
    event.preventDefault();
    setBusy(true);
    try {
      await call("PUT", path, { body });
      dialog.set(null);
      say(`Route ${route.name}: ${verb} ordered. All instances follow within about a second.`);
      changed();
    } catch (problem) {
      setError(problem);
      setBusy(false);
    }
  };
  const why = reason ? ` --note ${quoted(reason)}` : "";
  return html`<${Dialog} title=${`${name} route ${route.name}?`}>
    <form onSubmit=${give}>
      <p>${text}</p>
      <p class="dim">Parked now: ${count(now.parked)}, held: ${count(now.held)}.</p>
      <${Field} label="Reason" hint="kept in the audit log"><input value=${reason} autofocus onInput=${(e) => setReason(e.target.value)} /></${Field}>
      <${Trouble} error=${error} />
      <div class="buttons"><button type="submit" class="primary" disabled=${busy}>${name} route</button></div>
      <${Command} name="Terminal" text=${`postdate ${verb} ${quoted(route.name)}${why}`} />
      <${Command} name="API" text=${asCurl("PUT", path, body)} />
    </form>
  </${Dialog}>`;
}

export function RouteVerbs({ route }) {
  const may = useMay("admin");
  if (!may || route.mode !== "redis") return null;
  return (POSSIBLE[route.state] ?? []).map(
    (verb) =>
      html`<button type="button" class="small" key=${verb}
    aria-label=${`${VERBS[verb][0]} route ${route.name}`} onClick=${() => dialog.set(html`<${Order} route=${route} verb=${verb} />`)}>
    ${VERBS[verb][0]}</button>`,
  );
}

/** What the rates of a route count: the store keeps no rate of each route. */
export const RATES =
  "The last 10 s, of all instances. Routes without a store count only in the processes that run beside this page.";

/** How many messages are late, of a route or of all. One that is due this moment counts as overdue until it is claimed. */
export const lateOf = (one) => one.oldest_overdue_ms >= 1000 && one.overdue;
const lateOrRunning = (one) => (one.refused ? "refused" : one.unconfirmed || lateOf(one) ? "late" : "running");

/** The state of a route. One that no instance serves, or that nothing leaves, does not run, whatever was ordered. */
export function RouteState({ route }) {
  const idle =
    route.served === false
      ? "stopped"
      : route.broker_away
        ? "broker away"
        : route.served == null
          ? "unknown"
          : (route.idle_since_ms && "nothing in") || lateOrRunning(route);
  const state = route.state === "running" ? idle : route.state;
  return html`<${LiveBadge} is=${state} />`;
}

const Card = ({ one, poll }) =>
  html`<${Panel} title=${one.name} of=${poll} tools=${html`<${RouteState} route=${one} /><${RouteVerbs} route=${one} />`}>
  ${one.state !== "running" && html`<p class="note">${one.state} <${When} ms=${one.since_ms} />${one.by && ` by ${one.by}`}${one.reason && `: ${one.reason}`}</p>`}
  <${Facts} of=${[
    ["Broker", one.broker],
    ["From", html`<code>${one.intercept}</code>`],
    ["To", html`<code>${[].concat(one.deliver_to).join(", ")}</code>`],
    ["Mode", one.mode],
    ["Idle since", one.idle_since_ms && html`<${When} ms=${one.idle_since_ms} />`],
    ["In", html`<span title=${RATES}>${rate(one.received_per_s)}</span>`],
    ["Out", html`<span title=${RATES}>${rate(one.delivered_per_s)}</span>`],
    ["Parked", html`<a href=${link("messages", { route: one.name })}>${count(one.parked)}</a>`],
    ["Held", count(one.held)],
    ["Rate limit", one.max_rate && `${one.max_rate}/s`],
    ["Refused", one.refused ? `${count(one.refused)}, waiting for another try` : "none"],
    ["Dead", html`<a href=${link("messages", { route: one.name, state: "dead" })}>${count(one.dead)}</a>`],
    [
      "Overdue",
      lateOf(one)
        ? html`<span class="bad">${count(one.overdue)}, oldest ${span(one.oldest_overdue_ms)}</span>`
        : "none",
    ],
    ["Next due", html`<${Next} ms=${one.next_due_ms} both />`],
  ]} />
</${Panel}>`;

export function Routes() {
  const poll = statusPoll.use();
  const routes = useRoutes();
  return html`<h1>Routes</h1>
    ${!routes && poll.error && html`<${Unknown} error=${poll.error} />`}
    ${routes && !routes.length && html`<${Empty} command="postdate check">The settings name no route.</${Empty}>`}
    <div class="cards">${routes?.map((one) => html`<${Card} one=${one} poll=${poll} key=${one.name} />`)}</div>`;
}
