// Restore from the journal: a form over POST /restore, which counts first.
import { html, useState } from "./vendor/htm-preact.js";
import { Field } from "./parts.js";
import { dialog, useRoutes } from "./state.js";
import { Bulk } from "./verbs.js";
import { count, quoted } from "./words.js";

export const RESTORE = {
  name: "Restore",
  text: "Messages come back with their own ids, at their own due moments. What Redis has is left alone.",
};
const OVERDUE = ["deliver", "skip", "dead"];

export const askRestore = () => dialog.set(html`<${Restore} />`);

function asCommand({ route, key, cancelled, overdue }, { max_rate: rate }, reason) {
  const words = ["postdate restore", route && quoted(route), key && `--key ${quoted(key)}`, cancelled && "--cancelled"];
  words.push(overdue && `--overdue ${overdue}`, rate && `--max-rate ${rate}`, reason && `--note ${quoted(reason)}`);
  return [...words.filter(Boolean), "--yes"].join(" ");
}

const counted = ({ counts }) =>
  Object.entries(counts)
    .filter(([, number]) => number)
    .map(([name, number]) => html`<p key=${name}><b>${count(number)}</b> ${name.replace("_", " ")}</p>`);

function Restore() {
  const routes = useRoutes() ?? [];
  const [form, setForm] = useState({});
  const [rate, setRate] = useState("");
  const set = (name, value) => setForm({ ...form, [name]: value || undefined });
  const more = rate ? { max_rate: Number(rate) } : {};
  return html`<${Bulk} verb=${RESTORE} word="RESTORE" path="restore" asked=${form} more=${more} sample=${counted}
    cli=${(reason) => asCommand(form, more, reason)}>
    <div class="pair">
      <${Field} label="Route"><select onChange=${(e) => set("route", e.target.value)}><option value="">all</option>
        ${routes.filter((route) => route.mode === "redis").map(({ name }) => html`<option key=${name}>${name}</option>`)}</select></${Field}>
      <${Field} label="Key"><input maxlength="255" onChange=${(e) => set("key", e.target.value)} /></${Field}>
      <${Field} label="Overdue messages"><select onChange=${(e) => set("overdue", e.target.value)}>${OVERDUE.map((word) => html`<option key=${word}>${word}</option>`)}</select></${Field}>
      <${Field} label="Messages a second"><input type="number" min="1" max="100000" value=${rate} onInput=${(e) => setRate(e.target.value)} /></${Field}>
    </div>
    <label class="inline"><input type="checkbox" onChange=${(e) => set("cancelled", e.target.checked)} /> Also what was cancelled or replaced</label>
  </${Bulk}>`;
}
