// Requests to the API, the polling hook, and each request as a command for a terminal.
import { useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { ahead, asksToken, changes, paused, token } from "./state.js";
import { quoted } from "./words.js";

const ROOT = new URL("api/v1/", document.baseURI);
const BODYLESS = new Set(["GET", "HEAD"]);
/** A server that has not answered for so long hangs. A bulk dry run may take some seconds. */
const PATIENCE_MS = 15000;

/** An error that the API or the network gave; `message` is a sentence for people. */
export class Problem extends Error {
  constructor(status, detail, more = {}) {
    super(detail);
    this.status = status;
    this.more = more;
  }
}

function headersOf(method, more) {
  const headers = { Accept: "application/json", "X-Postdate-Via": "ui", ...more };
  if (token.get()) headers.Authorization = `Bearer ${token.get()}`;
  if (!BODYLESS.has(method)) headers["Content-Type"] = "application/json";
  return headers;
}

export function urlOf(path, query = {}) {
  const url = new URL(path, ROOT);
  for (const [name, value] of Object.entries(query)) {
    if (value !== "" && value != null) url.searchParams.set(name, value);
  }
  return url;
}

/** Return the response. Raises `Problem`. */
async function ask(method, path, { query, body, headers, signal } = {}) {
  const end = new AbortController();
  const give = () => end.abort();
  const timer = setTimeout(give, PATIENCE_MS);
  signal?.addEventListener("abort", give);
  let answer;
  try {
    answer = await fetch(urlOf(path, query), {
      method,
      signal: end.signal,
      headers: headersOf(method, headers),
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Problem(0, "postdate does not answer. Check that it runs: `postdate stats`.");
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener("abort", give);
  }
  if (answer.ok) return answer;
  let told = {};
  try {
    told = await answer.json();
  } catch {}
  const detail = told.detail || `The server answered ${answer.status}.`;
  if (answer.status === 401) asksToken.set(detail);
  throw new Problem(answer.status, detail, told);
}

export const call = async (method, path, options) => (await ask(method, path, options)).json();
export const get = (path, query, signal) => call("GET", path, { query, signal });
export const raw = async (path) => new Uint8Array(await (await ask("GET", path)).arrayBuffer());

/**
 * A hook: what `path` answers, asked again `every` ms after each answer, never twice at once, and not while it is `held`
 * or the page pauses. A changed path or query asks at once and keeps the old answer until then (`stale`); null asks nothing.
 * `at` is when the data came, by the browser's clock. `load` may take several requests; it passes what it has to `show`
 * meanwhile. Data with `snapshot` is not asked for again by itself.
 */
export function usePoll(path, query = {}, every = 2000, load = get, held = false) {
  const [state, set] = useState({ data: null, error: null, of: "", at: null });
  const change = changes.use();
  const entered = token.use();
  const of = path === null ? "" : urlOf(path, query).href;
  const latest = useRef();
  latest.current = { query, held };
  useEffect(() => {
    if (path === null) return undefined;
    const end = new AbortController();
    let timer;
    let once = false;
    const turn = async (first) => {
      if (!first && (latest.current.held || paused() || asksToken.get())) {
        timer = setTimeout(turn, 300);
        return;
      }
      try {
        const show = (part) => !end.signal.aborted && set({ data: part, error: null, of, at: Date.now(), busy: true });
        const data = await load(path, latest.current.query, end.signal, show);
        if (end.signal.aborted) return;
        if (data?.snapshot) once = true;
        if (data?.now_ms) ahead.set(data.now_ms - Date.now());
        set({ data, error: null, of, at: Date.now() });
      } catch (error) {
        if (end.signal.aborted) return;
        set((was) => ({ data: was.of === of ? was.data : null, error, of, at: was.of === of ? was.at : null }));
      }
      if (!end.signal.aborted && every && !once) timer = setTimeout(turn, every);
    };
    turn(true);
    return () => {
      end.abort();
      clearTimeout(timer);
    };
  }, [of, change, entered, every]);
  return { ...state, every, stale: state.of !== of };
}

/** The request as a line for a shell. The token stays out of it. */
export function asCurl(method, path, body, query) {
  const words = ["curl", "-X", method];
  if (token.get()) words.push("-H", '"Authorization: Bearer $POSTDATE_API_TOKEN"');
  if (!BODYLESS.has(method)) words.push("-H", "'Content-Type: application/json'");
  if (body !== undefined) words.push("-d", quoted(JSON.stringify(body)));
  return [...words, quoted(urlOf(path, query).href)].join(" ").replace("-X GET ", "");
}
