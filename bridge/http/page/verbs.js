// What an operator does to messages: to one, to those selected, or to all that match a filter.
import { html, useEffect, useState } from "./vendor/htm-preact.js";
import { asCurl, call, get } from "./api.js";
import { Command, Dialog, Due, Field, Trouble } from "./parts.js";
import { changed, dialog, say, status, zone } from "./state.js";
import { count, moment, quoted, zoneName } from "./words.js";

/** More messages need a typed word. */
const TYPED_ABOVE = 1000;
/** Shown until a moment is chosen. */
const LATER = { in: "1h" };

export const VERBS = {
  deliver: {
    name: "Deliver now",
    key: "d",
    states: ["parked"],
    text: "Due now: postdate publishes at once.",
    done: "due now",
  },
  reschedule: {
    name: "Reschedule",
    key: "r",
    states: ["parked"],
    text: "The due moment changes. One in the past means now.",
    done: "rescheduled",
  },
  cancel: {
    name: "Cancel",
    key: "c",
    states: ["parked", "dead"],
    text: "Deleted and never delivered. Only a journal can undo this.",
    done: "cancelled",
    danger: true,
  },
  retry: {
    name: "Retry",
    key: "t",
    states: ["dead"],
    text: "Parked again, due now, with the full number of tries.",
    done: "retried",
  },
};

export const verbsFor = (state) => Object.keys(VERBS).filter((verb) => VERBS[verb].states.includes(state));

// -- as a request and as a command

function requestFor(verb, id, due, reason) {
  const path = `messages/${encodeURIComponent(id)}`;
  const why = reason ? { reason } : {};
  if (verb === "cancel") return ["DELETE", path, undefined, why];
  if (verb === "reschedule") return ["PATCH", path, { ...due, ...why }, {}];
  return ["POST", `${path}/${verb}`, why, {}];
}

const dueOption = (due) => (due.in ? ` --in ${quoted(due.in)}` : due.at ? ` --at ${quoted(due.at)}` : "");

const OPTIONS =
  "state route key reason due_after due_before header min_size min_tries parked_after parked_before".split(" ");

/** A filter as options; null for one that the commands do not have: without it, they would take too much. */
function optionsOf(filter) {
  const given = Object.entries(filter).filter(([, value]) => value != null && value !== "" && value !== 0);
  if (given.some(([name]) => !OPTIONS.includes(name))) return null;
  return given.map(([name, value]) => ` --${name.replace("_", "-")} ${quoted(String(value))}`).join("");
}

/** `postdate list` with this filter; "" for one that it does not have. */
export function listCommand(filter, more = "") {
  const options = optionsOf(filter);
  return options == null ? "" : `postdate list${options}${more}`;
}

/** The same in a terminal; "" for a filter that the commands do not have. Only `cancel` has a choice of states. */
export function cliFor(verb, { ids, filter }, due, note = "") {
  const why = dueOption(due) + (note ? ` --note ${quoted(note)}` : "");
  if (ids) return `postdate ${verb} ${ids.map(quoted).join(" ")}${why}`;
  const options = optionsOf(verb === "cancel" ? filter : { ...filter, state: null });
  return options == null ? "" : `postdate ${verb}${options || " --all"}${why}`;
}

// -- when

/** Asks for a delay or a moment; gives {in} or {at}, or null while it is neither. */
export function DueInput({ onChange }) {
  const [way, setWay] = useState("in");
  const [text, setText] = useState("");
  const told = (kind, value) => {
    setWay(kind);
    setText(value);
    if (!value) onChange(null);
    else if (kind === "in") onChange({ in: value.trim() });
    else onChange({ at: fromInput(value) });
  };
  return html`<div class="pair">
    <${Field} label="Due"><select value=${way} onChange=${(e) => told(e.target.value, "")}>
      <option value="in">after a delay</option><option value="at">at a time</option></select></${Field}>
    ${
      way === "in"
        ? html`<${Field} label="Delay" hint="5m, 1h30m, 7d"><input required value=${text} onInput=${(e) => told("in", e.target.value)} placeholder="5m" list="delays" />
          <datalist id="delays">${["30s", "5m", "1h", "24h", "7d"].map((one) => html`<option value=${one} />`)}</datalist></${Field}>`
        : html`<${Field} label="Time" hint=${zoneName(Date.now())}><input required type="datetime-local" step="1" value=${text} onInput=${(e) => told("at", e.target.value)} /></${Field}>`
    }
  </div>`;
}

/** The value of a datetime-local input, in the page's zone, as RFC 3339. */
export function fromInput(value) {
  const at = new Date(zone.get() === "utc" ? `${value}Z` : value);
  return Number.isNaN(at.getTime()) ? "" : at.toISOString();
}

/** RFC 3339 as the value of such an input. */
export function toInput(text) {
  const ms = Date.parse(text);
  return Number.isNaN(ms) ? "" : moment(ms).slice(0, 19).replace(" ", "T");
}

// -- the dialogs

export const askOne = (verb, message, then) =>
  dialog.set(html`<${One} verb=${verb} message=${message} then=${then} />`);
export const askMany = (verb, target, then) => dialog.set(html`<${Many} verb=${verb} target=${target} then=${then} />`);

function useDue(verb) {
  const [due, setDue] = useState(verb === "reschedule" ? null : {});
  return [due, setDue, due ?? LATER];
}

const Reason = ({ value, onInput }) =>
  html`<${Field} label="Reason" hint="kept in the audit log"><input value=${value} maxlength="500" onInput=${(e) => onInput(e.target.value)} /></${Field}>`;

const Keep = ({ when }) => when && html`<button type="button" onClick=${() => dialog.set(null)}>Keep</button>`;

const restore = (id) =>
  call("POST", "restore", { body: { ids: [id], cancelled: true } }).then(
    (of) => dialog.set(html`<${Dialog} title="Undo"><${Progress} of=${of} /></${Dialog}>`),
    (problem) => say(problem.message, true),
  );

function One({ verb, message, then }) {
  const [due, setDue, shown] = useDue(verb);
  const [reason, setReason] = useState("");
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const { name, text, danger, done } = VERBS[verb];
  const [method, path, body, query] = requestFor(verb, message.id, shown, reason);
  const act = async (event) => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try {
      const result = await call(method, path, { body, query });
      dialog.set(null);
      // A dead letter would come back parked, and leave at once.
      const undo =
        verb === "cancel" && message.state === "parked" && status.get()?.journal && (() => restore(message.id));
      const to = verb === "reschedule" && result.due_ms ? ` to ${moment(result.due_ms)}` : "";
      say(`${message.id}: ${done}${to}.`, false, undo);
      changed();
      then?.();
    } catch (problem) {
      setError(problem);
      setBusy(false);
      if (problem.status === 409 || problem.status === 404) changed();
    }
  };
  return html`<${Dialog} title=${`${name}: ${message.key || message.id}`}>
    <form onSubmit=${act}>
      <p>${text}</p>
      <p class="dim"><code>${message.id}</code> of route ${message.route}. <${Due} message=${message} at=${message.seen_ms} /></p>
      ${verb === "reschedule" && html`<${DueInput} onChange=${setDue} />`}
      <${Reason} value=${reason} onInput=${setReason} />
      <${Trouble} error=${error} />
      <div class="buttons"><button type="submit" class=${danger ? "danger" : "primary"} disabled=${busy || !due}>${name}${danger && " message"}</button><${Keep} when=${danger} /></div>
      <${Command} name="Terminal" text=${cliFor(verb, { ids: [message.id] }, shown, reason)} />
      <${Command} name="API" text=${asCurl(method, path, body, query)} />
    </form>
  </${Dialog}>`;
}

/** `target` is {ids} or {filter}. */
function Many({ verb, target, then }) {
  const [due, setDue, shown] = useDue(verb);
  const late = verb === "reschedule";
  return html`<${Bulk} verb=${VERBS[verb]} word=${verb.toUpperCase()} path="bulk" asked=${{ verb, ...target }} then=${then}
    trial=${late ? LATER : {}} more=${due} cli=${(reason) => cliFor(verb, target, shown, reason)}
    sample=${(dry) =>
      html`${dry.sample.map((one) => html`<p key=${one.id}><b>${one.route}</b> <code>${one.key || one.id}</code> <${Due} message=${one} at=${dry.now_ms} /></p>`)}
      ${dry.count > dry.sample.length && html`<p class="dim">and ${count(dry.count - dry.sample.length)} more</p>`}`}>
    ${late && html`<${DueInput} onChange=${setDue} />`}
  </${Bulk}>`;
}

/** First a dry run of what is `asked`: how many, and a `sample`. Then the operation, with `more`; null: not known. */
export function Bulk({ verb, word, path, asked, trial, more, sample, cli, then, children }) {
  const [dry, setDry] = useState(null);
  const [reason, setReason] = useState("");
  const [typed, setTyped] = useState("");
  const [operation, setOperation] = useState(null);
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const { name, text, danger } = verb;
  const body = { ...asked, ...(more ?? trial), ...(reason ? { reason } : {}) };
  const first = JSON.stringify({ ...asked, ...trial, dry_run: true });
  useEffect(() => {
    let live = true;
    setDry(null);
    setError(null);
    const look = (seen) =>
      call("POST", path, { body: { ...JSON.parse(first), cursor: seen?.next } }).then(
        (found) => {
          if (!live) return;
          if (seen) found.count += seen.count;
          if (seen?.sample[0]) found.sample = seen.sample;
          setDry(found);
          if (found.next) look(found);
        },
        (problem) => live && setError(problem),
      );
    look();
    return () => {
      live = false;
    };
  }, [first]);
  const needsWord = dry && (dry.count > TYPED_ABOVE || !dry.complete);
  const ready = dry && (dry.count > 0 || !dry.complete) && more && (!needsWord || typed === word) && !busy;
  const act = async (event) => {
    event.preventDefault();
    if (!ready) return;
    setBusy(true);
    setError(null);
    try {
      setOperation(await call("POST", path, { body }));
      then?.();
    } catch (problem) {
      setError(problem);
      setBusy(false);
    }
  };
  const number = dry && `${dry.complete ? "" : "more than "}${count(dry.count)}`;
  if (operation)
    return html`<${Dialog} title=${`${name}: ${number} messages`} onClose=${changed}><${Progress} of=${operation} expected=${dry.complete ? dry.count : null} /></${Dialog}>`;
  return html`<${Dialog} title=${dry ? `${name}: ${number} messages?` : `${name}: counting …`}>
    <form onSubmit=${act}>
      <p>${text}</p>
      ${dry && dry.count === 0 && html`<p class="note">No message matches any more.</p>`}
      <div class="sample" aria-busy=${String(!dry && !error)}>${dry && sample(dry)}</div>
      ${children}
      <${Reason} value=${reason} onInput=${setReason} />
      ${needsWord && html`<${Field} label=${html`Type <b>${word}</b> to confirm`}><input value=${typed} onInput=${(e) => setTyped(e.target.value)} autocomplete="off" spellcheck=${false} /></${Field}>`}
      <${Trouble} error=${error} />
      <div class="buttons"><button type="submit" class=${danger ? "danger" : "primary"} disabled=${!ready}>${name} ${number ?? ""}</button><${Keep} when=${danger} /></div>
      <${Command} name="Terminal" text=${cli(reason)} />
      <${Command} name="API" text=${asCurl("POST", path, body)} />
    </form>
  </${Dialog}>`;
}

/** An operation as it runs, with a way to stop it. */
export function Progress({ of, expected = null }) {
  const [now, setNow] = useState(of);
  const [error, setError] = useState(null);
  const path = `operations/${encodeURIComponent(of.id)}`;
  useEffect(() => {
    let timer;
    let live = true;
    const look = async () => {
      try {
        const next = await get(path);
        if (!live) return;
        setNow(next);
        if (next.state !== "running") return changed();
      } catch (problem) {
        if (live) setError(problem);
      }
      if (live) timer = setTimeout(look, 500);
    };
    if (of.state === "running") look();
    return () => {
      live = false;
      clearTimeout(timer);
    };
  }, [of.id]);
  const stop = () => call("DELETE", path, {}).then(setNow, setError);
  const ended = now.state !== "running";
  const handled = now.done + now.skipped;
  const total = now.total ?? expected;
  return html`<div class="progress">
    <p role="status"><b>${{ running: "Running", done: "Done", stopped: "Stopped", failed: "Failed" }[now.state]}</b>
      : ${count(now.done)}${total == null ? ", counting" : ` of ${count(total)}`}${now.skipped ? `, skipped ${count(now.skipped)}` : ""}. ${now.text}</p>
    <progress max=${Math.max(1, total ?? 1)} value=${ended && now.state === "done" ? (total ?? 1) : total == null ? undefined : handled} aria-label="Progress"></progress>
    <${Trouble} error=${error} />
    <div class="buttons">
      ${!ended && html`<button type="button" class="danger" onClick=${stop}>Stop</button>`}
      ${!ended && html`<span class="dim">It goes on when you close this window: see System.</span>`}
    </div>
  </div>`;
}
