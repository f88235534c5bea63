"""A stand-in for the API with realistic data: the page alone can be tried and tested, without any server.

By hand: ``python -m tests.browser.stand_in 8480``.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, Response

from bridge.http.access import CSP
from bridge.http.page import page_routes
from bridge.operate.describe import past_of
from bridge.parking.history import HistoryRow, PastState

Json = dict[str, Any]

MINUTE, HOUR = 60_000, 3_600_000
AWAY = "Trouble: Redis does not answer at 127.0.0.1:6379 (Connection refused)."
ROUTES: Mapping[str, tuple[str, str, str, float]] = {
    "orders": ("rabbitmq", "orders.delay", "orders", 0.4),
    "reminders": ("rabbitmq", "reminders.delay", "reminders", 0.25),
    "webhooks": ("rabbitmq", "webhooks.delay", "webhooks", 0.1),
    "payments": ("kafka", "payments.delay", "payments", 0.2),
    "notifications": ("kafka", "notifications.delay", "notifications", 0.05),
}
REASONS = (
    "unroutable: RabbitMQ returned it: exchange 'webhooks' has no binding for routing key 'webhook.partner-7'",
    "bad_header: x-delay: 'tomorrow' is not a duration; write a number with a unit, such as 90s",
    "too_large: the record has 1203441 bytes, topic 'payments' takes 1048588",
)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def text(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class World:
    """Messages, routes, operations and the audit log, all in memory. ``many`` is added to the parked count."""

    def __init__(self, many: int = 0, token: str = "", role: str = "admin") -> None:
        self.many, self.token, self.role = many, token, role
        self.chance = random.Random(7)
        self.well = True
        #: The store does not answer; the HTTP process does not answer; the only instance is frozen.
        self.away = self.hung = self.frozen = False
        #: What an operator's pause holds is a warning without a trouble.
        self.holds = False
        #: What is wrong with a route, by its name.
        self.ills: dict[str, Json] = {}
        #: A request for messages looks at this many.
        self.look_max = 10**9
        self.slow_s = 0.0
        #: Bulk operations have not counted their messages yet.
        self.counting = False
        self.calls: list[tuple[str, str]] = []
        self.audit: list[Json] = []
        self.operations: list[Json] = []
        self.orders: dict[str, Json] = {}
        start = now_ms()
        self.start = start
        ahead = [int(self.chance.paretovariate(0.6) * 4_000) % (26 * HOUR) for _ in range(420)]
        self.messages = [self.message("parked", start + wait) for wait in sorted(ahead)]
        self.messages += [self.message("dead", start - self.chance.randrange(8 * HOUR)) for _ in range(23)]
        self.history = [self.ended(start - age) for age in sorted(self.chance.sample(range(6 * HOUR), 160))]

    def message(self, state: str, due: int) -> Json:
        chance = self.chance
        route = chance.choices(list(ROUTES), [one[3] for one in ROUTES.values()])[0]
        number = chance.randrange(10_000, 99_999)
        found: Json = {
            "id": f"{chance.getrandbits(76):019x}".translate(str.maketrans("01", "gh")),
            "state": state,
            "due": text(due),
            "due_ms": due,
            "broker": ROUTES[route][0],
            "route": route,
            "key": f"{route[:-1]}-{number}" if chance.random() < 0.85 else None,
            "size": int(chance.lognormvariate(6, 1)),
            "tries": 0,
            "arrived": text(due - 2 * HOUR),
            "arrived_ms": due - 2 * HOUR,
            "reason": None,
            "held": False,
        }
        if ROUTES[route][0] == "kafka":
            found |= {"topic": ROUTES[route][1], "partition": number % 6, "record_key": str(number)}
        else:
            found["routing_key"] = f"{route[:-1]}.{chance.choice(('created', 'expired', 'escalated'))}"
        if state == "dead":
            reason = chance.choices(REASONS, (6, 2, 1))[0]
            found |= {"reason": reason, "died": text(due), "died_ms": due, "tries": chance.randrange(1, 9)}
        return found

    def ended(self, due: int) -> Json:
        found = self.message("delivered", due)
        state = PastState(self.chance.choices(("delivered", "cancelled", "replaced"), (90, 7, 3))[0])
        late = int(self.chance.lognormvariate(1.6, 1)) if state is PastState.DELIVERED else None
        claimed, published = (due + late // 2, due + late) if late is not None else (None, None)
        key = (found["key"] or "").encode()
        moments = (found["arrived_ms"], due, claimed, published, due + (late or 0) + 2)
        rest = (found["tries"], found["size"], "", found["broker"])
        return past_of(HistoryRow(found["id"].encode(), found["route"], key, state, *moments, *rest)).as_dict()

    def find(self, one: str) -> Json | None:
        return next((message for message in [*self.messages, *self.history] if message["id"] == one), None)

    def wanted(self, asked: Mapping[str, Any]) -> list[Json]:
        state = asked.get("state") or "parked"
        found = self.history if state == "history" else [m for m in self.messages if m["state"] == state]
        for name in ("route", "key"):
            if asked.get(name):
                found = [m for m in found if m[name] == asked[name]]
        if asked.get("reason"):
            found = [m for m in found if (m["reason"] or "").startswith(asked["reason"])]
        if asked.get("min_size"):
            found = [m for m in found if m["size"] >= int(asked["min_size"])]
        if asked.get("due_before"):
            border = border_ms(asked["due_before"])
            found = [m for m in found if m["due_ms"] < border]
        if asked.get("due_after"):
            border = border_ms(asked["due_after"])
            found = [m for m in found if m["due_ms"] >= border]
        return sorted(found, key=lambda m: (m["due_ms"], m["id"]), reverse=state == "history")

    def move(self, message: Json, verb: str, due: int | None, reason: str) -> Json:
        if message["state"] in ("delivered", "cancelled"):
            return {"refused": True, "state": message["state"], "text": f"it was {message['state']} already"}
        if verb == "cancel":
            message["state"] = "cancelled"
            self.messages.remove(message)
            self.history.insert(0, message)
        elif verb == "retry":
            message |= {"state": "parked", "due_ms": now_ms(), "due": text(now_ms())}
        else:
            moment = due if due is not None else now_ms()
            message |= {"due_ms": moment, "due": text(moment)}
        self.note(verb, f"message {message['id']}", reason)
        return {"id": message["id"], "state": message["state"], "due": message["due"], "due_ms": message["due_ms"]}

    def note(self, verb: str, what: str, reason: str) -> None:
        at = now_ms()
        entry = {"at": text(at), "at_ms": at, "who": "admin", "via": "ui", "verb": verb, "what": what, "reason": reason}
        self.audit.insert(0, entry)


def problem(status: int, detail: str, **more: object) -> Response:
    content = {"type": "about:blank", "title": "", "status": status, "detail": detail, **more}
    return JSONResponse(content, status, media_type="application/problem+json")


def border_ms(moment: str) -> int:
    """A moment, or a duration from now."""
    if "T" in moment:
        return int(datetime.fromisoformat(moment).timestamp() * 1000)
    units = {"s": 1000, "m": MINUTE, "h": HOUR, "d": 24 * HOUR}
    return now_ms() + int(moment[:-1]) * units[moment[-1]]


def read_due(asked: Mapping[str, Any]) -> int:
    return border_ms(asked.get("at") or asked["in"])


def app_of(world: World) -> FastAPI:  # noqa: C901
    """Return the stand-in with the page."""
    app = FastAPI()
    app.include_router(page_routes())
    api = "/api/v1"

    @app.middleware("http")
    async def guard(request: Request, call_next: Any) -> Response:
        if request.url.path.startswith(api):
            world.calls.append((request.method, request.url.path))
            while world.hung:  # noqa: ASYNC110 (a test sets it from another thread)
                await asyncio.sleep(0.05)
            if world.away:
                more = verdict() | {"role": world.role, "version": "0.1.0", "bodies": "masked"}
                return problem(503, AWAY, **(more if request.url.path.endswith("/status") else {}))
            if world.token and request.headers.get("authorization") != f"Bearer {world.token}":
                return problem(401, "A token is needed. Send the header Authorization: Bearer TOKEN.")
        answer: Response = await call_next(request)
        answer.headers.setdefault("Content-Security-Policy", CSP)
        return answer

    def verdict(count: int = 0) -> Json:
        if world.away:
            return {"well": False, "sentence": AWAY, "troubles": [], "instance_states": states()}
        if world.frozen:
            text = "instance web-0 has been silent for 9s: it is frozen, or it died. Look at its process"
            fault = {"instance": "web-0", "subject": "instance", "text": text}
            return {"well": False, "sentence": f"Trouble: {text}.", "troubles": [fault], "instance_states": states()}
        if world.holds:
            return {"well": False, "level": "WARN", "sentence": "Paused: orders (held: 3).", "troubles": [],
                    "instance_states": states()}  # fmt: skip
        said = f"All well: {count:,} parked, nothing overdue." if world.well else "Trouble: RabbitMQ does not answer."
        fault = {"instance": "web-1", "subject": "rabbitmq", "text": "RabbitMQ does not answer"}
        troubles = [] if world.well else [fault]
        return {"well": world.well, "sentence": said, "troubles": troubles, "instance_states": states()}

    def states() -> list[Json]:
        if world.frozen:
            return [
                {"name": "web-0", "state": "stale", "text": "Instance web-0 has been silent for 9s.", "shards": None}
            ]
        state = "trouble" if world.away else "well"
        return [{"name": f"web-{n}", "state": state, "text": "", "shards": 2} for n in range(2)]

    @app.get(f"{api}/status")
    def status() -> Json:
        now = now_ms()
        parked = [m for m in world.messages if m["state"] == "parked"]
        dead = sum(m["state"] == "dead" for m in world.messages)
        dues = sorted(m["due_ms"] for m in parked)
        overdue = [due for due in dues if due < now]
        count = len(parked) + world.many
        return {
            "now_ms": now, **verdict(count), **routes(), "overdue": len(overdue),
            "parked": count, "held": 0, "claimed": 3, "dead": dead,
            "oldest_overdue_ms": now - overdue[0] if overdue else 0, "next_due_ms": dues[0] if dues else None,
            "due_5m": sum(due < now + 5 * MINUTE for due in dues), "parked_bytes": count * 640,
            "lateness": {"p50_ms": 2.4, "p99_ms": 11.8, "window_s": 900},
            "memory": [{"server": "127.0.0.1:6379", "used": 812_646_400, "max": 2_147_483_648}],
            "ever": {"received": 4_210_332, "delivered": 3_009_021}, "received_per_s": 184.2,
            "instances": 0 if world.frozen else 2, "delivered_per_s": 171.9,
            "version": "0.1.0", "role": world.role, "bodies": "masked",
            "canary": None if world.frozen else [
                {"broker": "rabbitmq", "ok": True, "lateness_ms": 2.1, "last_success_ms": now - 12_000},
                {"broker": "kafka", "ok": True, "lateness_ms": 3.8, "last_success_ms": now - 9_000},
            ],
        }  # fmt: skip

    @app.get(f"{api}/me")
    def me() -> Json:
        return {"role": world.role}

    @app.get(f"{api}/timeline")
    def timeline(span: str = "1h") -> Json:
        width = {"1h": HOUR, "6h": 6 * HOUR, "24h": 24 * HOUR, "7d": 168 * HOUR}[span]
        now, step = now_ms(), width // 60
        chance = random.Random(span)
        past = []
        for slot in range(60, 0, -1):
            count = int(900 + 500 * chance.random() + (700 if slot in (21, 22) else 0))
            slow, bad = (count // 5, count // 9) if slot in (21, 22) else (int(count * 0.004), 0)
            late = [count - slow - bad, slow, bad, 5 if bad else 0]
            past.append({"at_ms": now - slot * step, "count": sum(late), "late": late})
        due = [
            {"at_ms": now + n * step, "count": int(1300 / (1 + n / 25) * chance.uniform(0.7, 1.1))} for n in range(60)
        ]
        return {"now_ms": now, "span_ms": width, "step_ms": step, "past": past, "due": due, "overdue": 0, "held": 0}

    @app.get(f"{api}/routes")
    def routes() -> Json:
        found = []
        for name, (broker, intercept, target, share) in ROUTES.items():
            order = world.orders.get(name, {"state": "running", "since_ms": None, "by": None, "reason": None})
            parked = [m for m in world.messages if m["route"] == name and m["state"] == "parked"]
            dead = sum(m["route"] == name and m["state"] == "dead" for m in world.messages)
            held = len(parked) // 4 if order["state"] == "paused" else 0
            found.append({
                "name": name, "broker": broker, "intercept": intercept, "deliver_to": target, "mode": "redis",
                **order, "parked": int(world.many * share) + len(parked), "held": held, "dead": dead, "overdue": 0,
                "oldest_overdue_ms": 0, "next_due_ms": parked[0]["due_ms"] if parked else None,
                "received_per_s": round(184 * share, 1), "delivered_per_s": round(171 * share, 1),
                "served": not world.frozen, **world.ills.get(name, {}),
            })  # fmt: skip
        return {"routes": found}

    @app.put(f"{api}/routes/{{name}}/{{verb}}")
    async def order(name: str, verb: str, request: Request) -> Response:
        reason = (await request.json()).get("reason", "")
        state = {"pause": "paused", "resume": "running", "drain": "draining"}[verb]
        world.orders[name] = {"state": state, "since_ms": now_ms(), "by": "admin", "reason": reason}
        world.note(verb, f"route {name}", reason)
        return JSONResponse({"name": name, **world.orders[name]}, 202)

    @app.get(f"{api}/messages")
    def messages(request: Request) -> Json:
        asked = request.query_params
        time.sleep(world.slow_s)
        base = world.wanted({"state": asked.get("state")})
        wanted = {message["id"] for message in world.wanted(asked)}
        start, limit = int(asked.get("cursor") or 0), int(asked.get("limit") or 50)
        found: list[Json] = []
        end = start
        while end < len(base) and len(found) < limit and end - start < world.look_max:
            found += [base[end]] if base[end]["id"] in wanted else []
            end += 1
        more = str(end) if end < len(base) else None
        return {"messages": found, "next": more, "looked_at": end - start, "now_ms": now_ms()}

    @app.post(f"{api}/messages")
    async def schedule(request: Request) -> Response:
        asked = await request.json()
        message = world.message("parked", read_due(asked)) | {"route": asked["route"], "key": asked.get("key")}
        world.messages.append(message)
        world.note("send", f"message {message['id']}", "")
        return JSONResponse({"id": message["id"], "due": message["due"], "due_ms": message["due_ms"]}, 201)

    @app.get(f"{api}/messages/{{one}}")
    def show(one: str) -> Response:
        message = world.find(one)
        if message is None:
            return problem(404, "No message has this id. It was delivered or cancelled, or the id is wrong.")
        due = message["due_ms"]
        life = [{"what": "received", "at_ms": due - 2 * HOUR}, {"what": "parked", "at_ms": due - 2 * HOUR + 3}]
        life.append({"what": "due", "at_ms": due})
        life = message.get("life") or life
        body = '{"order": 4711, "customer": "c-2209", "total": "129.90", "currency": "EUR", "card_number": "••••"}'
        commands = {verb: f"postdate {verb} {one}" for verb in ("show", "cancel", "deliver")}
        left = message in world.history
        return JSONResponse({
            "message": message,
            "properties": None if left else {"content_type": "application/json", "delivery_mode": 2, "priority": 4},
            "headers": None if left else {"x-delay": 7_200_000, "tenant": "acme", "priority": "high"},
            "body": {"size": len(body), "text": body, "truncated": False, "hidden": ""},
            "life": life, "commands": commands, "now_ms": now_ms(),
        })  # fmt: skip

    @app.get(f"{api}/messages/{{one}}/body")
    def raw(one: str) -> Response:
        return Response(b'{"order": 4711}', media_type="application/octet-stream")

    @app.patch(f"{api}/messages/{{one}}")
    @app.post(f"{api}/messages/{{one}}/{{verb}}")
    @app.delete(f"{api}/messages/{{one}}")
    async def change(one: str, request: Request, verb: str = "") -> Response:
        message = world.find(one)
        if message is None:
            return problem(404, "No message has this id. It was delivered or cancelled, or the id is wrong.")
        asked = await request.json() if await request.body() else dict(request.query_params)
        verb = verb or {"PATCH": "reschedule", "DELETE": "cancel"}[request.method]
        due = read_due(asked) if verb == "reschedule" else None
        done = world.move(message, verb, due, asked.get("reason", ""))
        return problem(409, f"{done['text']}.", state=done["state"]) if "refused" in done else JSONResponse(done)

    @app.post(f"{api}/bulk")
    async def bulk(request: Request) -> Response:
        asked = await request.json()
        found = [world.find(one) for one in asked["ids"]] if "ids" in asked else world.wanted(asked["filter"])
        chosen = [message for message in found if message]
        extra = world.many if "filter" in asked and asked["filter"].get("state", "parked") == "parked" else 0
        if asked.get("dry_run"):
            counted = {"count": len(chosen) + extra, "complete": True, "sample": chosen[:5], "now_ms": now_ms()}
            return JSONResponse(counted)
        operation: Json = {
            "id": f"op{len(world.operations) + 1}", "verb": asked["verb"], "state": "running", "done": 0, "skipped": 0,
            "total": None if world.counting else len(chosen) + extra, "started_ms": now_ms(), "ended_ms": None,
            "by": "admin", "reason": asked.get("reason", ""), "text": "",
        }  # fmt: skip
        world.operations.insert(0, operation)
        due = read_due(asked) if asked["verb"] == "reschedule" else None
        for message in chosen:
            world.move(message, asked["verb"], due, asked.get("reason", ""))
        return JSONResponse(operation, 202)

    def progress(operation: Json) -> Json:
        if operation["state"] == "running":
            if operation["total"] is None:
                return operation
            done = min(operation["total"], (now_ms() - operation["started_ms"]) * 40)
            operation["done"] = done
            if done == operation["total"]:
                operation |= {"state": "done", "ended_ms": now_ms()}
        return operation

    @app.get(f"{api}/operations")
    def operations() -> Json:
        return {"operations": [progress(one) for one in world.operations]}

    @app.get(f"{api}/operations/{{one}}")
    def operation(one: str) -> Json:
        return progress(next(op for op in world.operations if op["id"] == one))

    @app.delete(f"{api}/operations/{{one}}")
    def stop(one: str) -> Json:
        found = progress(next(op for op in world.operations if op["id"] == one))
        found |= {"state": "stopped", "ended_ms": now_ms()}
        return found

    @app.get(f"{api}/search")
    def search(q: str = "") -> Json:
        found = [m for m in [*world.messages, *world.history] if q in (m["id"], m["key"])]
        return {"found": found, "text": "" if found else "not seen in the last 24 h", "now_ms": now_ms()}

    @app.get(f"{api}/dead/reasons")
    def reasons() -> Json:
        counts: dict[str, int] = {}
        for message in world.messages:
            if message["state"] == "dead":
                kind = message["reason"].partition(":")[0]
                counts[kind] = counts.get(kind, 0) + 1
        return {"reasons": [{"reason": kind, "count": n} for kind, n in counts.items()], "looked_at": 23,
                "complete": True, "total": 23}  # fmt: skip

    @app.get(f"{api}/instances")
    def instances() -> Json:
        return {"instances": [
            {"name": f"web-{n}", "state": "well", "text": "", "able": True, "shards": [n * 2, n * 2 + 1],
             "health": "All well.", "received": 104_332, "delivered": 103_119, "claimed": 3, "overdue_s": 0.0,
             "lateness_ms": {"p50": 2.3, "p99": 11.2, "max": 48.0}, "routes": list(ROUTES), "loads": {"0": 12.5},
             "by_route": {name: {"received": 21_922, "delivered": 20_118} for name in ROUTES}}
            for n in range(2)
        ]}  # fmt: skip

    @app.get(f"{api}/levels")
    def levels() -> Json:
        return {"levels": [
            {"route": "legacy", "kind": "queue", "name": f"legacy.delay.{2**n}", "messages": (n * 37) % 90,
             "state": "in use", "text": "", "is_dead": False, "uncounted": False}
            for n in range(12)
        ]}  # fmt: skip

    @app.get(f"{api}/config")
    def config() -> Json:
        return {"settings": [
            {"name": "redis.url", "value": "redis://127.0.0.1:6379/0", "source": "postdate.toml", "secret": True},
            {"name": "redis.password", "value": "", "source": "default", "secret": True},
            {"name": "auth.admin_token", "value": "••••", "source": "POSTDATE_AUTH__ADMIN_TOKEN", "secret": True},
            {"name": "history.keep", "value": "24h", "source": "default", "secret": False},
        ]}  # fmt: skip

    @app.get(f"{api}/doctor")
    def doctor() -> Json:
        return {"findings": [
            {"level": "OK", "subject": "redis", "text": "Redis 7.2.4 answers in 0.2 ms", "advice": ""},
            {"level": "WARN", "subject": "redis", "text": "maxmemory-policy is allkeys-lru",
             "advice": "redis-cli config set maxmemory-policy noeviction"},
        ]}  # fmt: skip

    @app.get(f"{api}/audit")
    def audit() -> Json:
        return {"audit": world.audit}

    return app


if __name__ == "__main__":
    uvicorn.run(app_of(World(many=1_203_441)), host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
