// State that all screens share: small observable values, what the browser remembers, and the address.
import { useEffect, useState } from "./vendor/htm-preact.js";

/** An observable value. `use()` is its hook. */
export function shared(value) {
  const listeners = new Set();
  return {
    get: () => value,
    set(next) {
      if (Object.is(next, value)) return;
      value = next;
      for (const listener of [...listeners]) listener(value);
    },
    use() {
      const [seen, see] = useState(value);
      useEffect(() => {
        listeners.add(see);
        see(value);
        return () => listeners.delete(see);
      }, []);
      return seen;
    },
  };
}

/** The same, kept in a storage of the browser. A browser without storage forgets it with the page. */
export function kept(storage, name, fallback) {
  const box = () => window[storage];
  const read = () => {
    try {
      return box().getItem(name) ?? fallback;
    } catch {
      return fallback;
    }
  };
  const one = shared(read());
  const set = one.set;
  one.set = (next) => {
    set(next);
    try {
      if (next === "" || next === fallback) box().removeItem(name);
      else box().setItem(name, next);
    } catch {}
  };
  return one;
}

export const zone = kept("localStorage", "postdate.zone", "utc");
export const theme = kept("localStorage", "postdate.theme", "auto");
export const DARK = matchMedia("(prefers-color-scheme: dark)");

/** Use the colours that were chosen, or those of the system. */
export function paint() {
  const look = theme.get();
  document.documentElement.dataset.theme = look === "auto" && DARK.matches ? "dark" : look;
}
DARK.addEventListener("change", paint);
paint();
/** Only for this tab, so that a token is gone when the tab is closed. */
export const token = kept("sessionStorage", "postdate.token", "");
/** Why the API asks for a token; "" while it does not. */
export const asksToken = shared("");
export const status = shared(null);
/** A hook: the routes, which come with the status, so that no row contradicts the banner; undefined before the first answer. */
export const useRoutes = () => status.use()?.routes;
/** The status is asked for so long after each answer. */
export const STATUS_MS = 1000;
/** The poll of the status: {data, error, at}. */
export const statusPoll = shared({ data: null, error: null, at: null, every: STATUS_MS });
/** Milliseconds that the server's clock is ahead of the browser's. */
export const ahead = shared(0);
export const toast = shared(null);
/** Grows when something was changed: every list then asks at once. */
export const changes = shared(0);
/** The open dialog; null for none. */
export const dialog = shared(null);
export const serverNow = () => Date.now() + ahead.get();
export const changed = () => changes.set(changes.get() + 1);

export function say(text, bad = false, undo) {
  toast.set({ text, bad, undo, at: Date.now() });
}

// -- may this role do that

const RANKS = ["viewer", "operator", "admin"];

/** A hook: whether the role of this browser includes `needed`. Unknown counts as no. */
export function useMay(needed) {
  const role = status.use()?.role;
  return RANKS.indexOf(role) >= RANKS.indexOf(needed);
}

// -- the address: "#/messages?state=dead&route=orders"

function read() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  return { path: path.split("/").map(decodeURIComponent), query: Object.fromEntries(new URLSearchParams(query)) };
}

export const address = shared(read());
window.addEventListener("hashchange", () => address.set(read()));

export function link(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value != null);
  const text = new URLSearchParams(given).toString();
  // The whole address of the page: a bare fragment would be relative to <base>, not to the page.
  const parts = path.split("/").map(encodeURIComponent).join("/");
  return `${location.pathname}#/${parts}${text ? `?${text}` : ""}`;
}

export function go(path, query) {
  location.hash = link(path, query).split("#")[1];
}

/** Why the refresh pauses; "" while it runs. */
export function paused() {
  if (document.hidden || !document.hasFocus()) return "window in the background";
  const chosen = getSelection();
  return chosen && !chosen.isCollapsed ? "text selected" : "";
}

/**
 * Data of a poll counts as old when its refresh is late by most of an interval, and at once when the last request failed.
 * The status is refreshed every second: two seconds after the last answer it is old. All that is not fresher than
 * `BESIDE_MS` is old then, too, so that no part of the page lags behind the banner.
 */
const LATE = 1.8,
  BESIDE_MS = 800;

/** How old the data of a poll is (ms), if that is worth a word; 0 if it is as good as live. Pure. */
export function ageOf({ data, error, at, every }, now, limit = every * LATE) {
  if (!data || at == null) return 0;
  const age = Math.max(1, now - at);
  return error || (every && age > limit) ? age : 0;
}

/** A hook: the same for now. */
export function useAge(poll) {
  ticks.use();
  const now = Date.now();
  return ageOf(poll, now, ageOf(statusPoll.use(), now) ? BESIDE_MS : undefined);
}

/** One clock for all parts of the page: what gets old does so everywhere at once. */
const ticks = shared(0),
  seconds = shared(0);
setInterval(() => {
  ticks.set(ticks.get() + 1);
  seconds.set(Math.floor(ticks.get() / 4));
}, 250);

/** A hook: the server's clock, again every second, for texts such as "in 5s". */
export function useSeconds() {
  seconds.use();
  return serverNow();
}
