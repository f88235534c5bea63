// Requests to the API, the polling hook, and each request as a command for a terminal.
import { useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { ahead, asksToken, changes, paused, token } from "./state.js";
import { quoted } from "./words.js";

const ROOT = new URL("api/v1/", document.baseURI);
const BODYLESS = new Set(["GET", "HEAD"]);

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
  let answer;
  try {
    answer = await fetch(urlOf(path, query), {
      method, signal, headers: headersOf(method, headers), cache: "no-store", credentials: "omit", redirect: "error",
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "postdate does not answer. Check that it runs: `postdate stats`.");
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
 * A hook: what `path` answers, asked again `every` ms after each answer, never twice at once, and not while the refresh
 * pauses. A changed path or query asks at once and keeps the old answer until then (`stale`). A null path asks nothing.
 */
export function usePoll(path, query = {}, every = 2000) {
  const [state, set] = useState({ data: null, error: null, of: "" });
  const change = changes.use();
  const entered = token.use();
  const of = path === null ? "" : urlOf(path, query).href;
  const latest = useRef(query);
  latest.current = query;
  useEffect(() => {
    if (path === null) return undefined;
    const end = new AbortController();
    let timer;
    const turn = async (first) => {
      if (!first && (paused() || asksToken.get())) {
        timer = setTimeout(turn, 300);
        return;
      }
      try {
        const data = await get(path, latest.current, end.signal);
        if (data?.now_ms) ahead.set(data.now_ms - Date.now());
        set({ data, error: null, of });
      } catch (error) {
        if (error.name === "AbortError") return;
        set((was) => ({ data: was.of === of ? was.data : null, error, of }));
      }
      if (!end.signal.aborted && every) timer = setTimeout(turn, every);
    };
    turn(true);
    return () => {
      end.abort();
      clearTimeout(timer);
    };
  }, [of, change, entered, every]);
  return { ...state, stale: state.of !== of };
}

/** The request as a line for a shell. The token stays out of it. */
export function asCurl(method, path, body, query) {
  const words = ["curl", "-X", method];
  if (token.get()) words.push("-H", '"Authorization: Bearer $POSTDATE_API_TOKEN"');
  if (!BODYLESS.has(method)) words.push("-H", "'Content-Type: application/json'");
  if (body !== undefined) words.push("-d", quoted(JSON.stringify(body)));
  return [...words, quoted(urlOf(path, query).href)].join(" ").replace("-X GET ", "");
}
