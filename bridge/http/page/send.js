// Schedule a message: a form over POST /messages.
import { html, useState } from "./vendor/htm-preact.js";
import { asCurl, call } from "./api.js";
import { Command, Empty, Field, Panel, Trouble } from "./parts.js";
import { changed, go, say, useMay, useRoutes } from "./state.js";
import { DueInput } from "./verbs.js";
import { moment, quoted } from "./words.js";

/** The delay of the commands while none is given: without one they would be refused. */
const SAMPLE = "5m";

/** A key that makes a repeated click harmless. `crypto.randomUUID` is missing on plain HTTP. */
const newKey = () =>
  [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

/** "name=value" on each line, as an object; null where a line is something else. */
function readHeaders(text) {
  const lines = text
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean);
  if (lines.some((line) => line.indexOf("=") < 1)) return null;
  return Object.fromEntries(lines.map((line) => [line.slice(0, line.indexOf("=")), line.slice(line.indexOf("=") + 1)]));
}

function asCommand(body, due) {
  const options = [
    ["routing_key", "--routing-key"],
    ["record_key", "--record-key"],
    ["topic", "--topic"],
    ["key", "--key"],
    ["content_type", "--content-type"],
    ["message_id", "--message-id"],
  ];
  const given = options
    .filter(([name]) => body[name] != null)
    .map(([name, option]) => ` ${option} ${quoted(body[name]) || "''"}`)
    .join("");
  const headers = Object.entries(body.headers ?? {})
    .map(([name, value]) => ` --header ${quoted(`${name}=${value}`)}`)
    .join("");
  const when = due?.at ? ` --at ${due.at}` : ` --in ${quoted(due?.in || SAMPLE)}`;
  return `postdate send ${quoted(body.route || "ROUTE")} ${quoted(body.body || "") || "''"}${given}${headers}${when}`;
}

export function Send() {
  const routes = useRoutes();
  const list = (routes ?? []).filter((one) => one.mode === "redis");
  const may = useMay("operator");
  const [form, setForm] = useState({
    route: "",
    body: '{"hello": "world"}',
    place: "",
    key: "",
    headers: "",
    content_type: "application/json",
  });
  const [due, setDue] = useState(null);
  const [again, setAgain] = useState(newKey);
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const set = (name) => (event) => setForm({ ...form, [name]: event.target.value });
  const route = list.find((one) => one.name === form.route) ?? list[0];
  const headers = readHeaders(form.headers);
  const amqp = route?.broker === "rabbitmq";
  const body = {
    route: route?.name,
    body: form.body,
    ...(headers && Object.keys(headers).length ? { headers } : {}),
    ...(form.key ? { key: form.key } : {}),
    ...(amqp
      ? { routing_key: form.place, ...(form.content_type ? { content_type: form.content_type } : {}) }
      : form.place
        ? { record_key: form.place }
        : {}),
    ...(due ?? {}),
  };
  const send = async (event) => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try {
      const parked = await call("POST", "messages", { body, headers: { "Idempotency-Key": again } });
      say(`Parked ${parked.id}, due ${moment(parked.due_ms)}.`);
      setAgain(newKey());
      changed();
      go(`messages/${parked.id}`);
    } catch (problem) {
      setError(problem);
    }
    setBusy(false);
  };
  return html`<h1>Send a message</h1>
    <p class="dim">It is parked in the store without a broker, and delivered when it is due.</p>
    ${routes && !list.length && html`<${Empty} command="postdate check">No route has a store (mode redis).</${Empty}>`}
    ${
      list.length > 0 &&
      html`<${Panel} title="Message"><form class="send" onSubmit=${send}>
      <div class="pair">
        <${Field} label="Route"><select value=${route.name} onChange=${set("route")}>${list.map((one) => html`<option value=${one.name} key=${one.name}>${one.name} (${one.broker})</option>`)}</select></${Field}>
        <${Field} label=${amqp ? "Routing key" : "Record key"} hint=${amqp ? "may be empty" : "optional"}><input value=${form.place} onInput=${set("place")} /></${Field}>
        <${Field} label="Key" hint="to cancel it by"><input value=${form.key} onInput=${set("key")} placeholder="order-4711" maxlength="255" /></${Field}>
        ${amqp && html`<${Field} label="Content type"><input value=${form.content_type} onInput=${set("content_type")} /></${Field}>`}
      </div>
      <${DueInput} onChange=${setDue} />
      <${Field} label="Body" wide><textarea rows="6" value=${form.body} onInput=${set("body")} spellcheck=${false}></textarea></${Field}>
      <${Field} label="Headers" hint="name=value, one on each line" wide><textarea rows="3" value=${form.headers} onInput=${set("headers")} spellcheck=${false}></textarea></${Field}>
      ${!headers && html`<p class="trouble">A header line needs the form name=value.</p>`}
      <${Trouble} error=${error} />
      <div class="buttons"><button class="primary" type="submit" disabled=${!may || busy || !due || !headers}>Send</button>
        ${!may && html`<span class="dim">Your role may not send: use an operator token.</span>`}</div>
    </form>
    <${Command} name="Terminal" text=${asCommand(body, due)} />
    <${Command} name="API" text=${asCurl("POST", "messages", { ...body, ...(due ?? { in: SAMPLE }) })} /></${Panel}>`
    }`;
}
